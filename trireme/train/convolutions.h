#pragma once
// train.convolution: which kernels small convolutions of a run take (model/convolution_choice.h).

#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/model/convolution_choice.h"
#include "trireme/model/model.h"
#include "trireme/train/run_config.h"

namespace trireme::train {

/// Values of train.convolution.
std::vector<std::string> convolution_names();

/// The same on all ranks. For "auto" rank 0 measures, once per machine (parallel/convolution_agreement.h),
/// where `model` has convolutions that it is about, in f32. Collective. Throws CommError; InvalidArgument
/// where this libtorch has no oneDNN and it is asked for.
model::ConvolutionChoice convolutions_for(const RunConfig& config, comm::Context& context,
                                          const model::Model& model);

}  // namespace trireme::train
