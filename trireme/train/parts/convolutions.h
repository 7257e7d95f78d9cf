#pragma once
// train.convolution and train.memory_format: kernels of the convolutions of a run, and the memory format of
// their activations (model/convolution_choice.h).

#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/model/convolution_choice.h"
#include "trireme/model/model.h"
#include "trireme/train/config/precision.h"

namespace trireme::train {

enum class ConvolutionKernels {
  kMeasured,  ///< "auto": the faster one on rank 0's machine
  kAten,      ///< ATen's own choice
  kOnednn,
  kProduct,  ///< one matrix product over the batch
};

/// The convolution settings of a configuration. The choice is made from them when the model exists.
struct ConvolutionRule {
  ConvolutionKernels kernels = ConvolutionKernels::kMeasured;
  std::optional<bool> channels_last = {};  ///< empty, "auto": as the kernels like it
  bool operator==(const ConvolutionRule&) const = default;
};

/// Values of train.convolution and of train.memory_format.
std::vector<std::string> convolution_names();
std::vector<std::string> memory_format_names();
/// Throws InvalidArgument: another value, or a product over contiguous activations.
ConvolutionRule convolution_rule(const std::string& convolution, const std::string& memory_format);

/// The same on all ranks. For kMeasured rank 0 measures those of `model` on `batch` samples at once
/// (parallel/convolution_agreement.h), in f32; of other precisions ATen's. `sample`: one (1, ...).
/// Collective. Throws CommError; InvalidArgument where this libtorch has no oneDNN and it is asked for.
model::ConvolutionChoice convolutions_for(const ConvolutionRule& rule, const Precision& precision,
                                          comm::Context& context, model::Model& model, const Fields& sample,
                                          std::int64_t batch);

}  // namespace trireme::train
