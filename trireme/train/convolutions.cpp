#include "trireme/train/convolutions.h"

#include <ATen/Context.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/parallel/convolution_agreement.h"

namespace trireme::train {
namespace {

struct Row {
  const char* name;
  ConvolutionKernels kernels;
};

constexpr std::array kRows = {Row{"auto", ConvolutionKernels::kMeasured},
                              Row{"aten", ConvolutionKernels::kAten},
                              Row{"onednn", ConvolutionKernels::kOnednn}};

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

std::vector<std::string> convolution_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

ConvolutionKernels convolution_kernels_of(const std::string& name) {
  const auto row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& each) { return name == each.name; });
  require(row != kRows.end(), "unknown convolution '", name, "'", suggest(name, convolution_names()));
  return row->kernels;
}

model::ConvolutionChoice convolutions_for(ConvolutionKernels asked, const Precision& precision,
                                          comm::Context& context, const model::Model& model) {
  if (asked == ConvolutionKernels::kAten) return {};
  if (asked == ConvolutionKernels::kOnednn) {
    require(at::hasMKLDNN(),
            "train.convolution = \"onednn\": this libtorch was built without oneDNN; take "
            "\"aten\", or \"auto\"");
    return model::ConvolutionChoice::onednn();
  }
  const bool matters = precision.autocast_to == at::kFloat && has_small_convolutions(model);
  return parallel::agreed(context.world(), matters && context.is_main()
                                               ? parallel::measured_convolutions_here(context.log())
                                               : model::ConvolutionChoice{});
}

}  // namespace trireme::train
