// An optimizer on the worker that owns the parameters gives the same updates as one in this process, for all
// options. The worker calls itself.

#include "trireme/remote/optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/remote/tensor_field.h"

namespace trireme::remote {
namespace {

using optim::OptimizerOptions;

constexpr int kSteps = 4;
/// One that Muon decays and orthogonalises, and one that it delegates to AdamW.
const std::vector<std::vector<std::int64_t>> kShapes = {{6, 4}, {5}};

at::Tensor first_value(std::size_t index) {
  torch::manual_seed(static_cast<std::uint64_t>(index));
  return torch::randn(kShapes[index]);
}
/// The size differs in each step, so that a mean square that carries over is noticed.
at::Tensor gradient(std::size_t index, int step) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + 10 * step) + index);
  return torch::randn(kShapes[index]) * (1 + 3 * step);
}

std::vector<at::Tensor> new_parameters() {
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < kShapes.size(); ++i) parameters.push_back(first_value(i).requires_grad_(true));
  return parameters;
}

std::vector<at::Tensor> after_local_steps(const OptimizerOptions& options) {
  const auto parameters = new_parameters();
  optim::NamedTensors named;
  for (std::size_t i = 0; i < parameters.size(); ++i) named.emplace_back(text("parameter", i), parameters[i]);
  const auto optimizer = optim::make_optimizer(options, named);
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradient(i, step);
    optimizer->step();
  }
  return parameters;
}

std::vector<at::Tensor> after_remote_steps(const rpc::Agent& agent, const OptimizerOptions& options) {
  const auto parameters = new_parameters();
  std::vector<rpc::RRef<at::Tensor>> references;
  for (const auto& each : parameters) references.push_back(agent.share(each));
  DistributedOptimizer optimizer(agent, options, references);
  for (int step = 0; step < kSteps; ++step) {
    Context context(agent);
    at::Tensor loss = torch::zeros({});
    for (std::size_t i = 0; i < parameters.size(); ++i)
      loss = loss + (parameters[i] * gradient(i, step)).sum();
    context.backward({loss});
    optimizer.step(context);
  }
  return parameters;
}

bool are_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!torch::equal(a[i], b[i])) return false;
  return true;
}

/// Options, and the same options with one of them at its default.
struct Case {
  const char* field;
  OptimizerOptions options, without;
};

std::vector<Case> cases() {
  std::vector<Case> cases;
  const OptimizerOptions defaults;
  const auto add = [&](const char* field, const OptimizerOptions& options, auto member) {
    OptimizerOptions without = options;
    without.*member = defaults.*member;
    cases.push_back({field, options, without});
  };
  using O = OptimizerOptions;
  add("name", {.name = "adamw", .lr = 0.01}, &O::name);
  add("lr", {.lr = 0.05}, &O::lr);
  add("weight_decay", {.weight_decay = 0.1}, &O::weight_decay);
  add("decay_1d", {.weight_decay = 0.1, .decay_1d = false}, &O::decay_1d);
  add("momentum", {.momentum = 0.5}, &O::momentum);
  add("nesterov", {.momentum = 0.5, .nesterov = true}, &O::nesterov);
  add("beta1", {.name = "adam", .lr = 0.01, .beta1 = 0.5}, &O::beta1);
  add("beta2", {.name = "adam", .lr = 0.01, .beta2 = 0.5}, &O::beta2);
  add("alpha", {.name = "rmsprop", .lr = 0.01, .alpha = 0.5}, &O::alpha);
  add("centered", {.name = "rmsprop", .lr = 0.01, .centered = true}, &O::centered);
  for (const char* name : {"adam", "adamw", "lamb"})
    add("variance_steps", {.name = name, .lr = 0.01, .variance_steps = 2}, &O::variance_steps);
  add("eps", {.name = "adam", .lr = 0.01, .eps = 0.5}, &O::eps);
  add("trust_coefficient", {.name = "lars", .trust_coefficient = 0.1}, &O::trust_coefficient);
  add("muon_scale", {.name = "muon", .lr = 0.01, .muon_scale = "match_rms_adamw"}, &O::muon_scale);
  add("muon_spares", {.name = "muon", .lr = 0.01, .muon_spares = {"parameter0"}}, &O::muon_spares);
  add("muon_adamw_rate", {.name = "muon", .lr = 0.01, .muon_adamw_rate = 0.25}, &O::muon_adamw_rate);
  return cases;
}

TEST(DistributedOptimizer, UpdatesLikeLocalOneForAnyOptions) {
  rpc::AgentOptions options{.name = "a", .directory = std::make_shared<rpc::LocalDirectory>()};
  const auto agent = join(options);
  for (const Case& each : cases()) {
    SCOPED_TRACE(text(each.options.name, ", ", each.field));
    const auto expected = after_local_steps(each.options);
    ASSERT_FALSE(are_equal(expected, after_local_steps(each.without))) << "the option changes nothing";
    EXPECT_TRUE(are_equal(after_remote_steps(*agent, each.options), expected));
  }
  agent->leave();
}

// Several trainers of one model have an optimizer each, for the same parameters. All values are integers, so
// that each order of the updates gives the same sum.
TEST(DistributedOptimizer, UpdatesOfSeveralTrainersCountOnce) {
  constexpr int kTrainers = 3, kUpdates = 300;
  rpc::AgentOptions options{.name = "a", .directory = std::make_shared<rpc::LocalDirectory>()};
  const auto agent = join(options);
  std::vector<at::Tensor> parameters;
  std::vector<rpc::RRef<at::Tensor>> references;
  for (int i = 0; i < 8; ++i) {
    parameters.push_back(torch::zeros({1000}).requires_grad_(true));
    references.push_back(agent->share(parameters.back()));
  }
  const auto train = [&](int trainer) {
    DistributedOptimizer optimizer(*agent, {.name = "sgd", .lr = 1}, references);
    for (int update = 0; update < kUpdates; ++update) {
      Context context(*agent);
      at::Tensor loss = torch::zeros({});
      for (const auto& each : parameters) loss = loss - (each * (trainer + 1)).sum();
      context.backward({loss});
      optimizer.step(context);
    }
  };
  std::vector<std::future<void>> trainers;
  for (int trainer = 0; trainer < kTrainers; ++trainer)
    trainers.push_back(std::async(std::launch::async, train, trainer));
  for (auto& each : trainers) EXPECT_NO_THROW(each.get());
  for (const auto& each : parameters) {
    EXPECT_EQ(each.min().item<float>(), kUpdates * (1 + 2 + 3));
    EXPECT_EQ(each.max().item<float>(), kUpdates * (1 + 2 + 3));
    EXPECT_FALSE(each.grad().defined());
  }
  agent->leave();
}

}  // namespace
}  // namespace trireme::remote
