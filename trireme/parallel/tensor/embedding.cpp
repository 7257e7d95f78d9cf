#include "trireme/parallel/tensor/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/tensor/internal/boxes.h"
#include "trireme/parallel/tensor/internal/vocabulary.h"

namespace trireme::parallel {

VocabularyParallelEmbedding::VocabularyParallelEmbedding(comm::Group group, std::int64_t vocabulary,
                                                         std::int64_t width)
    : group_(std::move(group)), cut_{.size = vocabulary}, width_(width) {
  require(vocabulary >= 1 && width >= 1, "an embedding of ", vocabulary, " tokens in ", width,
          " numbers; expected at least 1 of each");
  weight_ = register_parameter("weight", at::empty({cut_.size_on(group_.rank(), group_.size()), width}));
  model::initialise(*this, /*seed=*/0);
}

at::Tensor VocabularyParallelEmbedding::term_of(const at::Tensor& tokens) const {
  check_tokens(tokens, cut_.size, "token");
  if (group_.size() == 1) return at::embedding(weight_, tokens);
  const Range own = cut_.ranges(group_.rank(), group_.size())[0];
  const auto [places, outside] = own_tokens(tokens, own);
  if (own.size > 0) return at::embedding(weight_, places).masked_fill(outside.unsqueeze(-1), 0);
  // A rank without rows adds zeros, with the same autograd graph as the others.
  std::vector<std::int64_t> sizes = tokens.sizes().vec();
  sizes.push_back(width_);
  return weight_.sum().expand(sizes);
}

at::Tensor VocabularyParallelEmbedding::forward(const at::Tensor& tokens) {
  return sum_over_ranks(term_of(tokens), group_);
}

at::Tensor VocabularyParallelEmbedding::forward(const at::Tensor& tokens, const Sequence& sequence) {
  return sum_to_sequence(term_of(tokens), sequence, group_);
}

at::Tensor VocabularyParallelEmbedding::logits(const at::Tensor& input) {
  return at::linear(copy_to_ranks(input, group_), weight_);
}

at::Tensor VocabularyParallelEmbedding::logits(const at::Tensor& part, const Sequence& sequence) {
  return at::linear(gather_sequence(part, sequence, group_), weight_);
}

std::vector<model::ParameterBox> VocabularyParallelEmbedding::boxes() const {
  return boxes_of("weight", weight_, {cut_.size, width_}, 0, cut_, group_);
}

}  // namespace trireme::parallel
