#pragma once
// While a ConvolutionScope exists, f32 convolutions of images on this thread use the kernels of its choice.
// This holds for forward and backward and for any module, custom ones included: open a scope around a step.
// Scopes nest; the inner one counts. A scope applies to its thread only, also for ranks that are threads of
// one process.
// | The first scope whose choice is not ATen's, or the first convolutions_in(), installs two CPU kernels for
// the life of the process. They precede ATen's composite ones (aten::convolution and convolution_backward).
// Without a scope on the thread they do the same as ATen, bit by bit.

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
