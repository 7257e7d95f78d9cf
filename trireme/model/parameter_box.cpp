#include "trireme/model/parameter_box.h"

#include <algorithm>
#include <utility>

namespace trireme::model {
namespace {

void add_boxes(const torch::nn::Module& module, const std::string& prefix, std::vector<ParameterBox>& all) {
  const auto* holder = dynamic_cast<const HoldsParts*>(&module);
  const std::vector<ParameterBox> parts = holder ? holder->boxes() : std::vector<ParameterBox>();
  for (const auto& own : module.named_parameters(/*recurse=*/false)) {
    const auto is_of_it = [&own](const ParameterBox& box) { return box.name == own.key(); };
    if (std::ranges::none_of(parts, is_of_it)) all.push_back(whole_box(prefix + own.key(), own.value()));
  }
  for (ParameterBox box : parts) {
    box.name = prefix + box.name;
    all.push_back(std::move(box));
  }
  for (const auto& child : module.named_children())
    add_boxes(*child.value(), prefix + child.key() + ".", all);
}

}  // namespace

at::Tensor ParameterBox::part_of(const at::Tensor& tensor) const {
  at::Tensor part = tensor;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    part = part.narrow(static_cast<std::int64_t>(dim), places[dim], sizes[dim]);
  return part;
}

ParameterBox whole_box(std::string name, at::Tensor parameter) {
  const std::vector<std::int64_t> sizes = parameter.sizes().vec(), zeros(sizes.size(), 0);
  return {.name = std::move(name),
          .global_sizes = sizes,
          .offsets = zeros,
          .sizes = sizes,
          .parameter = std::move(parameter),
          .places = zeros};
}

std::vector<ParameterBox> parameter_boxes(const torch::nn::Module& module) {
  std::vector<ParameterBox> all;
  add_boxes(module, "", all);
  return all;
}

}  // namespace trireme::model
