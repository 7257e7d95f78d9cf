#pragma once
// Tokens, and classes, of which each rank has some.

#include <ATen/core/Tensor.h>

#include "trireme/parallel/tensor/cut.h"

namespace trireme::parallel {

/// Places in the rank's own range, and which of the tokens have none: their place is 0.
struct OwnTokens {
  at::Tensor places;   ///< i64
  at::Tensor outside;  ///< bool
};
OwnTokens own_tokens(const at::Tensor& tokens, const Range& own);

/// Throws InvalidArgument, before any exchange, when one of `tokens` is not in 0 to `vocabulary` - 1; on a
/// device, whose numbers the host does not read, the device fails. `what` is "token" or "target".
void check_tokens(const at::Tensor& tokens, std::int64_t vocabulary, const char* what);

}  // namespace trireme::parallel
