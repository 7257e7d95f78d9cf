#include "trireme/train/parts/convolutions.h"

#include <ATen/Context.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/parallel/convolution_agreement.h"

namespace trireme::train {
namespace {

template <class Value>
struct Row {
  const char* name;
  Value value;
};

constexpr std::array<Row<ConvolutionKernels>, 4> kKernels{{{"auto", ConvolutionKernels::kMeasured},
                                                           {"aten", ConvolutionKernels::kAten},
                                                           {"onednn", ConvolutionKernels::kOnednn},
                                                           {"product", ConvolutionKernels::kProduct}}};
constexpr std::array<Row<std::optional<bool>>, 3> kFormats{
    {{"auto", std::nullopt}, {"contiguous", false}, {"channels_last", true}}};

template <class Rows>
std::vector<std::string> names_of(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

template <class Rows>
auto value_of(const char* what, const Rows& rows, const std::string& name) {
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const auto& each) { return name == each.name; });
  require(row != rows.end(), "unknown ", what, " '", name, "'", suggest(name, names_of(rows)));
  return row->value;
}

/// The choice of a rule that needs no measurement.
model::ConvolutionChoice choice_of(const ConvolutionRule& rule) {
  model::ConvolutionChoice choice;
  if (rule.kernels == ConvolutionKernels::kOnednn) {
    require(at::hasMKLDNN(),
            "train.convolution = \"onednn\": this libtorch was built without oneDNN; take "
            "\"aten\", or \"auto\"");
    choice = model::ConvolutionChoice::onednn();
  }
  if (rule.kernels == ConvolutionKernels::kProduct) choice = model::ConvolutionChoice::product();
  choice.channels_last = rule.channels_last.value_or(choice.channels_last);
  return choice;
}

}  // namespace

std::vector<std::string> convolution_names() { return names_of(kKernels); }
std::vector<std::string> memory_format_names() { return names_of(kFormats); }

ConvolutionRule convolution_rule(const std::string& convolution, const std::string& memory_format) {
  const ConvolutionRule rule{.kernels = value_of("convolution", kKernels, convolution),
                             .channels_last = value_of("memory format", kFormats, memory_format)};
  require(rule.kernels != ConvolutionKernels::kProduct || rule.channels_last.value_or(true),
          "train.convolution = \"product\" lays activations out as channels_last, and train.memory_format = "
          "\"contiguous\" was asked for; leave that at \"auto\", or take another train.convolution");
  return rule;
}

model::ConvolutionChoice convolutions_for(const ConvolutionRule& rule, const Precision& precision,
                                          comm::Context& context, model::Model& model, const Fields& sample,
                                          std::int64_t batch) {
  if (rule.kernels != ConvolutionKernels::kMeasured || precision.autocast_to != at::kFloat)
    return choice_of(rule);
  model::ConvolutionChoice mine;
  if (context.is_main()) {
    model::Convolutions convolutions = convolutions_of(model, sample, batch);
    convolutions.channels_last = rule.channels_last;
    const telemetry::OwnWork work(context.status(), "measuring the convolutions of the model");
    mine = parallel::measured_convolutions_here(context.log(), convolutions);
  }
  return parallel::agreed(context.world(), mine);
}

}  // namespace trireme::train
