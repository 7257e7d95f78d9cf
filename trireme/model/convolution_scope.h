#pragma once
// While a ConvolutionScope lives, f32 convolutions of images of this thread take the kernels of its choice,
// forward and backward, in any module, custom ones included: open it around a step. Scopes nest; the inner
// one counts. A scope applies to its thread only, also for ranks that are threads of one process. The first
// scope whose choice is not ATen's, or the first convolutions_in(), puts two kernels before ATen's composite
// ones (aten::convolution and convolution_backward on the CPU) for the life of the process. Without a scope
// on the thread they do the same as ATen, bit by bit.

#include <functional>
#include <vector>

#include "trireme/model/convolution_choice.h"

namespace trireme::model {

class ConvolutionScope {
 public:
  explicit ConvolutionScope(const ConvolutionChoice& choice);
  ~ConvolutionScope();
  ConvolutionScope(const ConvolutionScope&) = delete;
  ConvolutionScope& operator=(const ConvolutionScope&) = delete;

 private:
  const ConvolutionChoice choice_;
  const ConvolutionChoice* const outer_;
};

/// The convolutions that a choice is about among those that this thread computes in `forward`, in their
/// order, repeated ones repeated.
std::vector<ConvolutionShape> convolutions_in(const std::function<void()>& forward);

}  // namespace trireme::model
