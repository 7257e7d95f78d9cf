#include "trireme/parallel/tensor/internal/vocabulary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>

#include "trireme/base/error.h"

namespace trireme::parallel {

OwnTokens own_tokens(const at::Tensor& tokens, const Range& own) {
  const at::Tensor places = tokens - own.begin;
  const at::Tensor outside = places.lt(0).logical_or_(places.ge(own.size));
  return {.places = places.masked_fill(outside, 0), .outside = outside};
}

void check_tokens(const at::Tensor& tokens, std::int64_t vocabulary, const char* what) {
  require(tokens.scalar_type() == at::kLong, "the ", what, "s are ", tokens.scalar_type(), " of shape ",
          tokens.sizes(), "; expected Long");
  const at::Tensor bad = tokens.lt(0).logical_or_(tokens.ge(vocabulary));
  if (!tokens.is_cpu()) {
    at::_assert_async(bad.any().logical_not());
    return;
  }
  if (!bad.any().item<bool>()) return;
  throw InvalidArgument(text(what, " ", tokens.masked_select(bad)[0].item<std::int64_t>(),
                             " is not in the vocabulary, which is 0 to ", vocabulary - 1));
}

}  // namespace trireme::parallel
