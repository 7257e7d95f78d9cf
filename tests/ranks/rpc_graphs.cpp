// Gradients over random graphs of RPC calls among the ranks of a world, compared bit by bit with those of one
// process: rpc_graphs [--graphs N] [--seed S] [--threads N], with N contexts at the same time. Values are
// small integers, so that sums are exact in any order.

#include <torch/torch.h>

#include <cstdio>
#include <future>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/comm/context.h"
#include "trireme/remote/init.h"
#include "trireme/remote/tensor_field.h"

namespace {

using namespace trireme;

constexpr std::int64_t kSize = 4;

/// One node: its worker, its operation, and its inputs, which are earlier results.
struct Step {
  std::int64_t where = 0, operation = 0, first = 0, second = 0, parameter = 0;
};
struct Graph {
  std::vector<Step> steps;
};

constexpr std::int64_t kParameters = 3;

/// Integer parameters, which every process can compute for each worker.
std::vector<at::Tensor> make_parameters(std::int64_t worker) {
  std::vector<at::Tensor> parameters;
  for (std::int64_t i = 0; i < kParameters; ++i) {
    parameters.push_back(((torch::arange(kSize, torch::kFloat64) + worker + i).remainder(3) - 1)
                             .detach()
                             .requires_grad_(true));
  }
  return parameters;
}
std::vector<at::Tensor> parameters_here;

at::Tensor compute(std::int64_t operation, const at::Tensor& a, const at::Tensor& b, const at::Tensor& p) {
  switch (operation) {
    case 0:
      return a + b * p;
    case 1:
      return a - b + p;
    case 2:
      return a * p + b.flip(0);
    default:
      return (a + b).roll(1) - p * b;
  }
}

/// Runs one step on this worker. pass_on() runs it through this worker on worker `to`.
at::Tensor run_step(std::int64_t operation, const at::Tensor& a, const at::Tensor& b, std::int64_t parameter);
at::Tensor pass_on(std::int64_t to, std::int64_t operation, const at::Tensor& a, const at::Tensor& b,
                   std::int64_t parameter);
constexpr auto& kRunStep = rpc::function<"run_step", &run_step>;
constexpr auto& kPassOn = rpc::function<"pass_on", &pass_on>;

at::Tensor run_step(std::int64_t operation, const at::Tensor& a, const at::Tensor& b,
                    std::int64_t parameter) {
  return compute(operation, a, b, parameters_here.at(static_cast<std::size_t>(parameter)));
}
at::Tensor pass_on(std::int64_t to, std::int64_t operation, const at::Tensor& a, const at::Tensor& b,
                   std::int64_t parameter) {
  return rpc::this_agent()->rpc_sync(text("worker", to), kRunStep, operation, a, b, parameter);
}

std::vector<at::Tensor> gradients_here(remote::ContextId context) {
  std::vector<at::Tensor> result(kParameters);
  for (const auto& [tensor, gradient] : remote::gradients_of(context)) {
    for (std::size_t i = 0; i < parameters_here.size(); ++i) {
      if (tensor.is_same(parameters_here[i])) result[i] = gradient;
    }
  }
  return result;
}
constexpr auto& kGradientsHere = rpc::function<"gradients_here", &gradients_here>;

Graph random_graph(Random& random, std::int64_t workers) {
  Graph graph;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(n)));
  };
  const std::int64_t count = 3 + below(6);
  for (std::int64_t i = 0; i < count; ++i) {
    graph.steps.push_back({.where = below(workers + 1),  // the last one: through another worker
                           .operation = below(4),
                           .first = below(i + 1),
                           .second = below(i + 1),
                           .parameter = below(kParameters)});
  }
  return graph;
}

/// Computes all steps. The loss is the sum of the unused values, so that all steps contribute to it.
template <class Run>
at::Tensor loss_of(const Graph& graph, const at::Tensor& input, const Run& run) {
  std::vector<at::Tensor> values = {input};
  std::vector<bool> used(graph.steps.size() + 1);
  for (const Step& step : graph.steps) {
    used[static_cast<std::size_t>(step.first)] = used[static_cast<std::size_t>(step.second)] = true;
    values.push_back(run(step, values[static_cast<std::size_t>(step.first)],
                         values[static_cast<std::size_t>(step.second)]));
  }
  at::Tensor loss = torch::zeros({}, torch::kFloat64);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!used[i]) loss = loss + values[i].sum();
  }
  return loss;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined())
    return a.defined() == b.defined() || (a.defined() ? a : b).count_nonzero().item<std::int64_t>() == 0;
  return torch::equal(a, b);
}

/// The number of graphs whose gradients differ.
int compare(const rpc::Agent& agent, std::int64_t workers, std::int64_t num_graphs, std::uint64_t seed) {
  int different = 0;
  for (std::int64_t number = 0; number < num_graphs; ++number) {
    Random random(seed + static_cast<std::uint64_t>(number));
    const Graph graph = random_graph(random, workers);
    const at::Tensor start = torch::arange(kSize, torch::kFloat64) - 1;

    const at::Tensor input = start.clone().requires_grad_(true);
    remote::Context context(agent);
    const at::Tensor loss =
        loss_of(graph, input, [&](const Step& step, const at::Tensor& a, const at::Tensor& b) {
          if (step.where < workers) {
            return agent.rpc_sync(text("worker", step.where), kRunStep, step.operation, a, b, step.parameter);
          }
          return agent.rpc_sync(text("worker", 1 % workers), kPassOn, workers - 1, step.operation, a, b,
                                step.parameter);
        });
    context.backward({loss});
    at::Tensor input_gradient;
    for (const auto& [tensor, gradient] : context.gradients()) {
      if (tensor.is_same(input)) input_gradient = gradient;
    }

    std::vector<std::vector<at::Tensor>> parameters;
    for (std::int64_t worker = 0; worker < workers; ++worker) parameters.push_back(make_parameters(worker));
    const at::Tensor alone = start.clone().requires_grad_(true);
    const at::Tensor expected =
        loss_of(graph, alone, [&](const Step& step, const at::Tensor& a, const at::Tensor& b) {
          const std::int64_t where = step.where < workers ? step.where : workers - 1;
          return compute(
              step.operation, a, b,
              parameters[static_cast<std::size_t>(where)][static_cast<std::size_t>(step.parameter)]);
        });
    expected.backward();
    bool equal = torch::equal(loss, expected) && same(input_gradient, alone.grad());
    for (std::int64_t worker = 0; worker < workers; ++worker) {
      const auto there = agent.rpc_sync(text("worker", worker), kGradientsHere, context.id());
      for (std::size_t i = 0; i < there.size(); ++i) {
        equal = equal && same(there[i], parameters[static_cast<std::size_t>(worker)][i].grad());
      }
    }
    if (!equal) {
      ++different;
      std::printf("graph of seed %lu differs\n",
                  static_cast<unsigned long>(seed) + static_cast<unsigned long>(number));
    }
  }
  return different;
}

int run(int argc, char** argv) {
  std::int64_t graphs = 20;
  std::uint64_t seed = 1;
  int threads = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--graphs") graphs = std::stol(argv[i + 1]);
    if (std::string(argv[i]) == "--seed") seed = std::stoul(argv[i + 1]);
    if (std::string(argv[i]) == "--threads") threads = std::stoi(argv[i + 1]);
  }
  const auto context = comm::Context::from_environment();
  parameters_here = make_parameters(context->rank());
  const auto agent = remote::init(*context, text("worker", context->rank()));
  int different = 0;
  if (context->is_main()) {
    std::vector<std::future<int>> parts;
    for (int i = 0; i < threads; ++i) {
      parts.push_back(std::async(std::launch::async, [&, i] {
        return compare(*agent, context->world_size(), graphs / threads,
                       seed + static_cast<std::uint64_t>(i * graphs));
      }));
    }
    for (auto& each : parts) different += each.get();
    std::printf("%ld graphs over %d workers: %d different\n", graphs / threads * threads,
                context->world_size(), different);
  }
  agent->leave();
  if (remote::num_contexts() != 0) {
    std::printf("worker %d still has %zu contexts\n", context->rank(), remote::num_contexts());
    return 1;
  }
  return different == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
