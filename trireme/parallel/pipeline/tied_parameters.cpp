#include "trireme/parallel/pipeline/internal/tied_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

namespace trireme::parallel {

TiedParameters::TiedParameters(comm::Group group, const std::vector<model::Layer>& layers,
                               const std::vector<Pipeline::StageLayers>& stages)
    : group_(std::move(group)) {
  struct Found {
    std::string name;
    std::size_t stage;  ///< the first stage
    Tied tied;
  };
  std::vector<Found> all;  // in the order of the model: the same on every rank
  for (std::size_t number = 0; number < stages.size(); ++number) {
    const Pipeline::StageLayers& stage = stages[number];
    for (int i = stage.first; i < stage.last; ++i) {
      for (const auto& [name, parameter] : layers[static_cast<std::size_t>(i)].parameters) {
        auto at = std::find_if(all.begin(), all.end(),
                               [&name = name](const Found& found) { return found.name == name; });
        if (at == all.end())
          at = all.insert(at, {name, number, {.parameter = parameter, .before = {}, .ranks = {}}});
        if (at->stage != number) {
          across_stages_ = true;
          names_.insert(name);
        }
        for (const int rank : stage.ranks) {
          std::vector<int>& ranks = at->tied.ranks;
          if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
        }
      }
    }
  }
  for (auto& [name, stage, tied] : all) {
    any_ = any_ || tied.ranks.size() > 1;
    if (tied.ranks.size() > 1) names_.insert(name);
    const bool mine = std::find(tied.ranks.begin(), tied.ranks.end(), group_.rank()) != tied.ranks.end();
    if (mine && tied.ranks.front() != group_.rank()) held_before_.insert(name);
    if (mine && tied.ranks.size() > 1) tied_.push_back(std::move(tied));
  }
}

void TiedParameters::make_equal() {
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, before, ranks] : tied_) {
    at::Tensor value = parameter.detach();
    if (ranks.front() != group_.rank()) {
      group_.recv(value, ranks.front());
      continue;
    }
    for (auto rank = ranks.begin() + 1; rank != ranks.end(); ++rank) group_.send(value, *rank);
  }
}

void TiedParameters::set_aside() {
  for (Tied& tied : tied_) tied.before = std::exchange(tied.parameter.mutable_grad(), at::Tensor());
}

void TiedParameters::add_gradients() {
  const at::NoGradGuard no_grad;
  for (auto& [parameter, before, ranks] : tied_) {
    if (!parameter.requires_grad()) continue;  // a zero gradient would still apply weight decay
    const at::Tensor mine =
        parameter.grad().defined() ? parameter.grad().contiguous() : at::zeros_like(parameter);
    std::vector<at::Tensor> parts;
    std::vector<comm::Pending> pending;
    for (const int rank : ranks) {
      parts.push_back(rank == group_.rank() ? mine : at::empty_like(mine));
      if (rank == group_.rank()) continue;
      pending.push_back(group_.send_async(mine, rank));
      pending.push_back(group_.recv_async(parts.back(), rank));
    }
    for (comm::Pending& each : pending) each.wait();
    at::Tensor sum = parts.front().clone();
    for (auto part = parts.begin() + 1; part != parts.end(); ++part) sum.add_(*part);
    parameter.mutable_grad() = before.defined() ? before.add_(sum) : sum;
    before = at::Tensor();
  }
}

}  // namespace trireme::parallel
