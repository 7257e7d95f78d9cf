#include "trireme/train/parts/gradient_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>

#include "trireme/base/text.h"
#include "trireme/optim/norms.h"

namespace trireme::train {
namespace {

/// Labels of parameters that an earlier rank holds.
std::set<std::string> held_before(comm::Group& model_parallel, const optim::NamedTensors& mine,
                                  const ShardSpecs& held) {
  if (model_parallel.size() == 1) return {};
  std::vector<std::string> labels;
  for (const auto& [name, parameter] : mine) labels.push_back(held.label_of(name));
  const std::vector<std::string> all = model_parallel.all_gather_text(join(labels, "\n"));
  std::set<std::string> before;
  for (int rank = 0; rank < model_parallel.rank(); ++rank) {
    for (std::string& label : split(all[static_cast<std::size_t>(rank)], '\n'))
      before.insert(std::move(label));
  }
  return before;
}

}  // namespace

GradientNorm::GradientNorm(comm::Group pipeline, const optim::NamedTensors& mine,
                           const std::vector<std::string>& all)
    : GradientNorm(std::move(pipeline), mine, all, {}, /*in_parts=*/false) {}

GradientNorm::GradientNorm(comm::Group model_parallel, const optim::NamedTensors& mine,
                           const std::vector<std::string>& all, const ShardSpecs& held)
    : GradientNorm(std::move(model_parallel), mine, all, held, /*in_parts=*/true) {}

GradientNorm::GradientNorm(comm::Group model_parallel, const optim::NamedTensors& mine,
                           const std::vector<std::string>& all, const ShardSpecs& held, bool in_parts)
    : model_parallel_(std::move(model_parallel)),
      in_parts_(in_parts),
      num_parameters_(all.size()),
      device_(mine.empty() || mine.front().second.is_meta() ? c10::Device(c10::kCPU)
                                                            : mine.front().second.device()) {
  const std::set<std::string> before = held_before(model_parallel_, mine, held);
  for (const auto& [name, parameter] : mine) {
    if (before.contains(held.label_of(name))) continue;
    const auto place = std::find(all.begin(), all.end(), name) - all.begin();
    counted_.push_back({static_cast<std::size_t>(place), parameter});
  }
}

/// In the model's order; zero for parameters that another rank counts.
at::Tensor GradientNorm::norms_of_parameters() const {
  std::vector<at::Tensor> gradients;
  std::vector<std::size_t> places;
  for (const auto& [place, parameter] : counted_) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad());
    places.push_back(place);
  }
  // Offloaded parameters do not show the device of their gradients.
  const c10::Device device = gradients.empty() ? device_ : gradients.front().device();
  std::vector<at::Tensor> norm_of(num_parameters_, at::zeros({}, at::device(device).dtype(at::kFloat)));
  if (!gradients.empty()) {
    const std::vector<at::Tensor> found = optim::norms_of(gradients);
    for (std::size_t i = 0; i < found.size(); ++i) norm_of[places[i]] = found[i].to(at::kFloat);
  }
  return at::stack(norm_of);
}

at::Tensor GradientNorm::measure() {
  const at::NoGradGuard no_grad;
  at::Tensor norms = norms_of_parameters();
  if (!in_parts_) {
    if (model_parallel_.size() > 1) model_parallel_.all_reduce(norms);  // one rank counts each
    return optim::norm_of_norms(norms);
  }
  at::Tensor square = norms.to(at::kDouble).square().sum().reshape({1});
  model_parallel_.all_reduce(square);
  return square.sqrt().reshape({});
}

}  // namespace trireme::train
