// A gradient to which a caller keeps a reference over zero_grad() keeps its values, as without a wrapper.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/unit/parallel/small_models.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::numbers;

/// Three layers. The gradients of the first two are allocated in their bucket memory (64 and 48 KiB).
struct Wide : torch::nn::Module {
  Wide()
      : first(register_module("first", torch::nn::Linear(128, 128))),
        second(register_module("second", torch::nn::Linear(128, 96))),
        third(register_module("third", torch::nn::Linear(96, 4))) {
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return third(second(first(x).tanh()).tanh()); }
  torch::nn::Linear first, second, third;
};

at::Tensor loss_of_step(Wide& model, int rank, int step) {
  return model.forward(numbers({4, 128}, 10 * step + rank)).square().mean();
}

/// Tensors that must not change from now on.
class KeptTensors {
 public:
  void add(const at::Tensor& tensor) { kept_.push_back({tensor, tensor.clone()}); }
  void expect_unchanged(const std::string& when) const {
    for (std::size_t i = 0; i < kept_.size(); ++i)
      EXPECT_TRUE(at::equal(kept_[i].first, kept_[i].second)) << "tensor " << i << ", " << when;
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

struct WayToZero {
  const char* name;
  std::function<void(Wide&, DistributedDataParallel&, torch::optim::SGD&)> zero;
};

struct Handle {
  const char* name;
  std::function<at::Tensor(const at::Tensor& gradient)> of;
};

const std::vector<WayToZero> kWaysToZero = {
    {"module", [](Wide& model, DistributedDataParallel&, torch::optim::SGD&) { model.zero_grad(); }},
    {"optimizer", [](Wide&, DistributedDataParallel&, torch::optim::SGD& sgd) { sgd.zero_grad(); }},
    {"ddp", [](Wide&, DistributedDataParallel& ddp, torch::optim::SGD&) { ddp.zero_grad(); }}};

const std::vector<Handle> kHandles = {
    {"itself", [](const at::Tensor& gradient) { return gradient; }},
    {"detached", [](const at::Tensor& gradient) { return gradient.detach(); }},
    {"a view", [](const at::Tensor& gradient) { return gradient.flatten().narrow(0, 1, 3); }}};

constexpr int kStepsWithHandles = 8;

/// Reduced gradients of a step, as one process computes them.
std::vector<at::Tensor> gradients_of_one_process(int step) {
  Wide model;
  for (int rank = 0; rank < 2; ++rank) (loss_of_step(model, rank, step) / 2).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

void expect_reduced(const Wide& model, int step) {
  const auto expected = gradients_of_one_process(step);
  const auto parameters = model.parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::allclose(parameters[i].grad(), expected[i], 1e-5, 1e-7)) << "parameter " << i;
}

class KeptGradients : public testing::TestWithParam<std::tuple<WayToZero, Handle>> {};

// In the first steps gradients are copied to the buckets, and later they are allocated there. Each step keeps
// its gradients.
TEST_P(KeptGradients, KeepTheirValuesOverTheNextPasses) {
  const auto& [way, handle] = GetParam();
  for (const double bucket_mib : {1e-5, 25.0}) {
    run_ranks_as_threads(2, [&](Context& context) {
      const auto model = std::make_shared<Wide>();
      DistributedDataParallel ddp(context, model, {.bucket_mib = bucket_mib, .first_bucket_mib = bucket_mib});
      torch::optim::SGD sgd(model->parameters(), 0.1);
      KeptTensors kept;
      for (int step = 0; step < kStepsWithHandles; ++step) {
        way.zero(*model, ddp, sgd);
        loss_of_step(*model, context.rank(), step).backward();
        kept.expect_unchanged("step " + std::to_string(step));
        expect_reduced(*model, step);
        if (step % 3 == 2) continue;  // steps without a handle in between
        kept.add(handle.of(model->second->weight.grad()));
        if (step % 2 == 0) kept.add(handle.of(model->first->bias.grad()));
      }
    });
  }
}

TEST_P(KeptGradients, KeepValuesUnderNoSync) {
  const auto& [way, handle] = GetParam();
  run_ranks_as_threads(2, [&](Context& context) {
    const auto model = std::make_shared<Wide>();
    DistributedDataParallel ddp(context, model);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    KeptTensors kept;
    for (int step = 0; step < kStepsWithHandles; ++step) {
      way.zero(*model, ddp, sgd);
      {
        const auto quiet = ddp.no_sync();
        loss_of_step(*model, context.rank(), step + 100).backward();
        kept.add(handle.of(model->first->weight.grad()));
        way.zero(*model, ddp, sgd);
        (loss_of_step(*model, context.rank(), step) / 2).backward();
      }
      (loss_of_step(*model, context.rank(), step) / 2).backward();
      kept.expect_unchanged("step " + std::to_string(step));
      expect_reduced(*model, step);
    }
  });
}

std::string name_of_case(const testing::TestParamInfo<KeptGradients::ParamType>& info) {
  std::string name = std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name;
  std::ranges::replace(name, ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Ways, KeptGradients,
                         testing::Combine(testing::ValuesIn(kWaysToZero), testing::ValuesIn(kHandles)),
                         name_of_case);

// Without zero_grad() a reference is the gradient itself, which accumulates further, even where buckets are
// rebuilt.
TEST(KeptGradient, AccumulatingParameterUpdatesItsGradient) {
  run_ranks_as_threads(2, [](Context& context) {
    const auto model = std::make_shared<Wide>();
    DistributedDataParallel ddp(context, model, {.bucket_mib = 1e-5, .first_bucket_mib = 1e-5});
    at::Tensor handle, part;
    {
      const auto quiet = ddp.no_sync();
      loss_of_step(*model, context.rank(), 0).backward();
      handle = model->first->weight.grad();
      part = handle.detach().narrow(0, 3, 2);
    }
    for (int pass = 0; pass < 3; ++pass) {
      loss_of_step(*model, context.rank(), pass).backward();
      EXPECT_TRUE(handle.is_same(model->first->weight.grad()));
      EXPECT_TRUE(at::equal(part, model->first->weight.grad().narrow(0, 3, 2))) << "pass " << pass;
    }
  });
}

TEST(KeptGradient, UnusedParameterKeepsValues) {
  for (const auto unused : {UnusedParameters::kFind, UnusedParameters::kStatic}) {
    run_ranks_as_threads(2, [&](Context& context) {
      const auto model = std::make_shared<Wide>();
      DistributedDataParallel ddp(context, model, {.unused_parameters = unused});
      KeptTensors kept;
      const auto backward = [&](int step) {
        const at::Tensor x = numbers({4, 96}, 10 * step + context.rank());
        model->third(x).square().mean().backward();
      };
      if (unused == UnusedParameters::kFind) loss_of_step(*model, context.rank(), 0).backward();
      if (unused == UnusedParameters::kStatic) {
        const auto quiet = ddp.no_sync();
        loss_of_step(*model, context.rank(), 0).backward();
      }
      kept.add(model->first->weight.grad());
      kept.add(model->third->weight.grad());
      ddp.zero_grad();
      for (int step = 1; step < 5; ++step) {
        backward(step);
        kept.expect_unchanged("step " + std::to_string(step));
        EXPECT_FALSE(model->first->weight.grad().defined());
        ddp.zero_grad();
      }
    });
  }
}

TEST(KeptGradient, BelongsToParameterAfterMove) {
  run_ranks_as_threads(2, [](Context& context) {
    const auto model = std::make_shared<Wide>();
    DistributedDataParallel ddp(context, model);
    for (int step = 0; step < 4; ++step) {
      loss_of_step(*model, context.rank(), step).backward();
      const at::Tensor transposed = model->first->weight.grad().t(), values = transposed.clone();
      ddp.zero_grad();
      model->first->weight.mutable_grad() = transposed;
      loss_of_step(*model, context.rank(), step).backward();
      const at::Tensor expected = gradients_of_one_process(step)[0] + values;
      EXPECT_TRUE(at::allclose(model->first->weight.grad(), expected, 1e-5, 1e-7)) << "step " << step;
      ddp.zero_grad();
    }
  });
}

}  // namespace
}  // namespace trireme::parallel
