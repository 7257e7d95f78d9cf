#include "trireme/train/gradient_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>

#include "trireme/base/text.h"

namespace trireme::train {
namespace {

/// Names that a rank before this one in the pipeline holds.
std::set<std::string> held_before(comm::Group& pipeline, const optim::NamedTensors& mine) {
  if (pipeline.size() == 1) return {};
  std::vector<std::string> names;
  for (const auto& [name, parameter] : mine) names.push_back(name);
  const std::vector<std::string> all = pipeline.all_gather_text(join(names, "\n"));
  std::set<std::string> before;
  for (int rank = 0; rank < pipeline.rank(); ++rank) {
    for (std::string& name : split(all[static_cast<std::size_t>(rank)], '\n')) before.insert(std::move(name));
  }
  return before;
}

}  // namespace

GradientNorm::GradientNorm(comm::Group pipeline, const optim::NamedTensors& mine,
                           const std::vector<std::string>& all)
    : pipeline_(std::move(pipeline)),
      num_parameters_(all.size()),
      device_(mine.empty() ? c10::Device(c10::kCPU) : mine.front().second.device()) {
  const std::set<std::string> before = held_before(pipeline_, mine);
  for (const auto& [name, parameter] : mine) {
    if (before.contains(name)) continue;
    const auto place = std::find(all.begin(), all.end(), name) - all.begin();
    counted_.push_back({static_cast<std::size_t>(place), parameter});
  }
}

at::Tensor GradientNorm::measure() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<std::size_t> places;
  for (const auto& [place, parameter] : counted_) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad());
    places.push_back(place);
  }
  std::vector<at::Tensor> norm_of(num_parameters_, at::zeros({}, at::device(device_).dtype(at::kFloat)));
  if (!gradients.empty()) {
    const std::vector<at::Tensor> found = at::_foreach_norm(gradients);
    for (std::size_t i = 0; i < found.size(); ++i) norm_of[places[i]] = found[i].to(at::kFloat);
  }
  at::Tensor norms = at::stack(norm_of);
  if (pipeline_.size() > 1) pipeline_.all_reduce(norms);  // one rank adds each
  return at::linalg_vector_norm(norms, 2);
}

}  // namespace trireme::train
