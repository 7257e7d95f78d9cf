#pragma once
// Steps of ranks that are threads, with known gradients, through a compression: the reduced gradients and the
// residuals.

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/parallel/known_gradients.h"
#include "trireme/comm/context.h"
#include "trireme/comm/internal/group_state.h"
#include "trireme/comm/internal/host_layout.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::test {

using parallel::CompressionOptions;
using parallel::HookState;
using parallel::ReduceScale;

/// The host id of each rank.
using Hosts = std::vector<std::string>;

inline int ranks_on(const Hosts& hosts) { return static_cast<int>(hosts.size()); }

/// Ranks by host, in the order of the first rank of each host.
inline std::vector<std::vector<int>> by_host(const Hosts& hosts) {
  return comm::layout_of(hosts, 0).ranks_of_host;
}

using ByName = std::map<std::string, at::Tensor>;

inline ByName gradients_in(const Parameters& parameters) {
  ByName found;
  for (const auto& [name, tensor] : parameters.tensors) found[name] = tensor.grad().clone();
  return found;
}

/// The backward of a step.
using Backward = std::function<void(const Parameters&, int rank, int step)>;

inline void backward_of_a_rank(const Parameters& parameters, int rank, int step) {
  parameters.backward(rank, step);
}

struct StepsOfRanks {
  std::vector<std::vector<ByName>> reduced;  ///< by rank and step
  std::vector<HookState> kept;               ///< by rank
  std::vector<std::int64_t> sent;            ///< by rank
};

struct Steps {
  int first = 0, end = 3;
  ReduceScale scale = ReduceScale::kSum;
  double bucket_mib = 25;
  const StepsOfRanks* go_on_from = nullptr;
};

inline HookState copy_of(const HookState& state) {
  HookState copy = state;
  for (auto* list : {&copy.own, &copy.common}) {
    for (auto& [name, tensor] : *list) tensor = tensor.clone();
  }
  for (HookState::Piece& piece : copy.pieces) piece.tensor = piece.tensor.clone();
  return copy;
}

inline void fill(const HookState& to, const HookState& from) {
  const auto copy = [](const optim::NamedTensors& into, const optim::NamedTensors& values) {
    ASSERT_EQ(into.size(), values.size());
    for (std::size_t i = 0; i < into.size(); ++i) at::Tensor(into[i].second).copy_(values[i].second);
  };
  copy(to.own, from.own);
  copy(to.common, from.common);
  for (std::size_t i = 0; i < to.pieces.size(); ++i)
    at::Tensor(to.pieces[i].tensor).copy_(from.pieces[i].tensor);
}

/// The ranks are threads, which in fact share one host.
inline StepsOfRanks take_steps(const Hosts& hosts, const CompressionOptions& options, const Steps& steps = {},
                               const Backward& backward = backward_of_a_rank) {
  StepsOfRanks outcome{.reduced = std::vector<std::vector<ByName>>(hosts.size()),
                       .kept = std::vector<HookState>(hosts.size()),
                       .sent = std::vector<std::int64_t>(hosts.size())};
  comm::run_ranks_as_threads(ranks_on(hosts), [&](comm::Context& context) {
    context.world().state().parts.host_ids = hosts;
    const auto rank = static_cast<std::size_t>(context.rank());
    const Parameters parameters;
    const auto hook = parallel::make_comm_hook(options);
    DistributedDataParallel ddp(context.world(),
                                parallel::Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.bucket_mib = steps.bucket_mib,
                                 .first_bucket_mib = steps.bucket_mib,
                                 .scale = steps.scale,
                                 .hook = hook});
    if (steps.go_on_from != nullptr) fill(hook->state(), steps.go_on_from->kept[rank]);
    for (int step = steps.first; step < steps.end; ++step) {
      ddp.zero_grad();
      backward(parameters, context.rank(), step);
      outcome.reduced[rank].push_back(gradients_in(parameters));
    }
    outcome.kept[rank] = copy_of(hook->state());
    outcome.sent[rank] = hook->sent_bytes();
  });
  return outcome;
}

/// Steps of ranks that each compress on their own.
inline StepsOfRanks of_each_rank(std::size_t ranks, CompressionOptions options, const Steps& steps = {},
                                 const Backward& backward = backward_of_a_rank) {
  options.scope = "all";
  return take_steps(Hosts(ranks, "one"), options, steps, backward);
}

}  // namespace trireme::test
