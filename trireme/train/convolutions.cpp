#include "trireme/train/convolutions.h"

#include <ATen/Context.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/parallel/convolution_agreement.h"

namespace trireme::train {
namespace {

bool all_ones(at::IntArrayRef values) {
  return std::all_of(values.begin(), values.end(), [](std::int64_t value) { return value == 1; });
}

bool has_small_convolutions(const model::Model& model) {
  const auto modules = model.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    const auto* convolution = module->template as<torch::nn::Conv2dImpl>();
    return convolution != nullptr && all_ones(convolution->options.kernel_size()) &&
           all_ones(convolution->options.stride()) && convolution->options.groups() == 1;
  });
}

}  // namespace

std::vector<std::string> convolution_names() { return {"auto", "aten", "onednn"}; }

model::ConvolutionChoice convolutions_for(const RunConfig& config, comm::Context& context,
                                          const model::Model& model) {
  const std::string& asked = config.train.convolution;
  if (asked == "aten") return {};
  if (asked == "onednn") {
    require(at::hasMKLDNN(),
            "train.convolution = \"onednn\": this libtorch was built without oneDNN; take "
            "\"aten\", or \"auto\"");
    return model::ConvolutionChoice::onednn();
  }
  const bool matters = config.train.precision == "fp32" && has_small_convolutions(model);
  return parallel::agreed(context.world(), matters && context.is_main()
                                               ? parallel::measured_convolutions_here(context.log())
                                               : model::ConvolutionChoice{});
}

}  // namespace trireme::train
