#pragma once
// train.convolution: which kernels small convolutions of a run take (model/convolution_choice.h).

#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/model/convolution_choice.h"
#include "trireme/model/model.h"
#include "trireme/train/precision.h"

namespace trireme::train {

enum class ConvolutionKernels {
  kMeasured,  ///< "auto": what is faster on rank 0's machine
  kAten,      ///< ATen's own choice
  kOnednn,
};

/// Values of train.convolution, and what they mean. Throws InvalidArgument: another one.
std::vector<std::string> convolution_names();
ConvolutionKernels convolution_kernels_of(const std::string& name);

/// The same on all ranks. For kMeasured rank 0 measures, once per machine (parallel/convolution_agreement.h),
/// where `model` has convolutions that it is about, in f32. Collective. Throws CommError; InvalidArgument
/// where this libtorch has no oneDNN and it is asked for.
model::ConvolutionChoice convolutions_for(ConvolutionKernels asked, const Precision& precision,
                                          comm::Context& context, const model::Model& model);

}  // namespace trireme::train
