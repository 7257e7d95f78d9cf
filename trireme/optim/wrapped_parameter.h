#pragma once
// Parameters of a model of which this rank has a part: the stages of a Pipeline, the pieces of a
// FullyShardedDataParallel. A mark on the tensor names the object with the others, so functions over one
// rank's tensors reject them. A mark is part of the tensor, survives detach() and set_data(), and counts as
// long as the object lives. Not thread-safe for one tensor.

#include <ATen/core/Tensor.h>

#include <memory>

namespace trireme::optim {

struct Wrapper {
  const char* name;  ///< "Pipeline"
};

/// Marks `parameter` as a part of the parameters of `wrapper`; a later mark replaces it.
void mark_wrapped(const at::Tensor& parameter, const std::shared_ptr<const Wrapper>& wrapper);
/// Null: none that lives.
std::shared_ptr<const Wrapper> wrapper_of(const at::Tensor& parameter);

}  // namespace trireme::optim
