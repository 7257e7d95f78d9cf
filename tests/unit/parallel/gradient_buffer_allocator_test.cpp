// Backward allocates gradients in the memory in which they are reduced. Also steps that differ from the
// previous one.
#include "trireme/parallel/data/internal/gradient_buffer_allocator.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <thread>

#include "tests/unit/parallel/small_models.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/data/gradient_hook.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::numbers;

/// A matrix whose gradient is a product, and memory for that gradient.
struct Placed {
  at::Tensor weight = test::numbers({96, 128}, 1).requires_grad_();
  at::Tensor input = test::numbers({4, 96}, 2);
  at::Tensor memory = at::zeros({96 * 128});
  int num_lent = 0;
  std::shared_ptr<GradientBufferAllocator> places =
      std::make_shared<GradientBufferAllocator>(1, [this](std::size_t) {
        ++num_lent;
        return memory;
      });

  Placed() {
    hook_gradient(weight, "weight", [this] { places->arrived(0, weight.grad()); });
  }
  /// Whether the gradient was allocated in the memory.
  bool step(const std::function<at::Tensor(const at::Tensor&)>& more = [](const at::Tensor& x) {
    return x;
  }) {
    weight.mutable_grad().reset();
    places->begin_step();
    const at::Tensor loss = more(input.mm(weight)).square().sum();
    places->start();
    loss.backward();
    places->stop();
    EXPECT_TRUE(weight.grad().allclose(2 * input.t().mm(input.mm(weight)))) << "a wrong gradient";
    return weight.grad().const_data_ptr() == memory.const_data_ptr();
  }
};

TEST(GradientBufferAllocator, AreUsedFromTheSecondStepOn) {
  Placed placed;
  EXPECT_FALSE(placed.step());
  EXPECT_TRUE(placed.step());
  EXPECT_TRUE(placed.step());
  EXPECT_TRUE(placed.places->is_leased(0));
  placed.weight.mutable_grad().reset();
  EXPECT_FALSE(placed.places->is_leased(0));
}

TEST(GradientBufferAllocator, PlacesAreLearntAnewForChangedSteps) {
  Placed placed;
  placed.step();
  EXPECT_TRUE(placed.step());
  // Its backward allocates another large tensor before.
  const auto detour = [](const at::Tensor& x) { return (x.repeat({64, 1}) * 1).narrow(0, 0, 4); };
  EXPECT_FALSE(placed.step(detour));
  EXPECT_TRUE(placed.step(detour));
}

TEST(GradientBufferAllocator, AreNotLentTwiceAtATime) {
  Placed placed;
  placed.step();
  placed.step();
  const at::Tensor kept = placed.weight.grad();  // a user keeps a reference to it
  const at::Tensor before = kept.clone();
  EXPECT_FALSE(placed.step());
  EXPECT_EQ(placed.num_lent, 1);
  EXPECT_TRUE(kept.equal(before));
}

TEST(GradientBufferAllocator, LeaveOtherAllocationsAlone) {
  Placed placed;
  placed.step();
  placed.step();
  placed.weight.mutable_grad().reset();
  const at::Tensor other = at::ones({96 * 128});
  EXPECT_NE(other.const_data_ptr(), placed.memory.const_data_ptr());
}

TEST(GradientBufferAllocator, SeveralWatchersShareOneBackward) {
  Placed first, second;
  const auto both = [&] {
    for (Placed* each : {&first, &second}) {
      each->weight.mutable_grad().reset();
      each->places->begin_step();
      each->places->start();
    }
    (first.input.mm(first.weight).square().sum() + second.input.mm(second.weight).sin().sum()).backward();
    return (first.weight.grad().const_data_ptr() == first.memory.const_data_ptr()) +
           (second.weight.grad().const_data_ptr() == second.memory.const_data_ptr());
  };
  EXPECT_EQ(both(), 0);
  EXPECT_EQ(both(), 2);
  EXPECT_EQ(both(), 2);
}

TEST(GradientBufferAllocator, AllocatorServesOneThreadAtOnce) {
  Placed placed;
  placed.step();
  EXPECT_TRUE(placed.step());
  placed.places->start();  // started here and never stopped
  placed.weight.mutable_grad().reset();
  std::thread([&] {
    EXPECT_TRUE(placed.step());
    placed.places->start();
  }).join();
  placed.weight.mutable_grad().reset();
  const at::Tensor other = at::ones({4, 96}).requires_grad_();
  const int lent_before = placed.num_lent;
  other.mm(at::ones({96, 128})).sum().backward();  // a backward of other parameters
  EXPECT_EQ(placed.num_lent, lent_before);
  placed.places.reset();
  other.mm(at::ones({96, 128})).sum().backward();
}

/// Layers whose weights are large enough for their own memory: 64, 48 and 36 KiB.
struct Large : torch::nn::Module {
  torch::nn::Linear first{torch::nn::LinearOptions(128, 128).bias(false)};
  torch::nn::Linear second{torch::nn::LinearOptions(128, 96).bias(false)};
  torch::nn::Linear third{torch::nn::LinearOptions(96, 96).bias(false)};
  static constexpr std::int64_t kBytes = (128 * 128 + 128 * 96 + 96 * 96) * 4;

  Large() {
    double seed = 1;
    for (auto* each : {&first, &second, &third})
      (*each)->weight.set_data(numbers((*each)->weight.sizes(), seed++));
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
  }
  at::Tensor loss(const at::Tensor& x) { return third(second(first(x).tanh()).tanh()).square().mean(); }
};

at::Tensor input_of(int rank, int step) { return numbers({8, 128}, 10 * step + rank); }

using Loss = std::function<at::Tensor(Large& model, const at::Tensor& input)>;
at::Tensor whole_loss(Large& model, const at::Tensor& input) { return model.loss(input); }

/// The gradients of one process for the inputs of all ranks.
std::vector<at::Tensor> expected_gradients(int ranks, int step, const Loss& loss = whole_loss) {
  Large model;
  for (int rank = 0; rank < ranks; ++rank) (loss(model, input_of(rank, step)) / ranks).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

void expect_gradients(const Large& model, const std::vector<at::Tensor>& expected, int step) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(model.parameters()[i].grad().defined(), expected[i].defined()) << "parameter " << i;
    if (!expected[i].defined()) continue;
    const double off = (model.parameters()[i].grad() - expected[i]).abs().max().item<double>();
    EXPECT_LE(off, 1e-6 * expected[i].abs().max().item<double>()) << "step " << step << ", parameter " << i;
  }
}

/// A replica on two ranks, and the number of copies in its steps.
struct Replicated {
  std::shared_ptr<Large> model = std::make_shared<Large>();
  DistributedDataParallel ddp;
  int rank;

  explicit Replicated(Context& context, const DataParallelOptions& options = {})
      : ddp(context, model, options), rank(context.rank()) {}

  std::int64_t step(int number, const Loss& loss = whole_loss) {
    const std::int64_t before = ddp.statistics().copied_bytes;
    ddp.zero_grad();
    loss(*model, input_of(rank, number)).backward();
    expect_gradients(*model, expected_gradients(2, number, loss), number);
    return ddp.statistics().copied_bytes - before;
  }
};

TEST(GradientsInBuckets, AreInPlaceFromThirdStep) {
  for (const char* backend : {"threads", "shm"}) {
    run_ranks_as_threads(2,
                         [](Context& context) {
                           Replicated replicated(context);
                           EXPECT_EQ(replicated.step(0), Large::kBytes);
                           EXPECT_EQ(replicated.step(1), Large::kBytes);
                           for (int step = 2; step < 5; ++step) EXPECT_EQ(replicated.step(step), 0) << step;
                         },
                         {.backend = backend});
  }
}

TEST(GradientsInBuckets, AccumulateInPlaceWithoutReduction) {
  run_ranks_as_threads(2, [](Context& context) {
    Replicated replicated(context);
    const auto twice = [&](int step) {
      const std::int64_t before = replicated.ddp.statistics().copied_bytes;
      replicated.ddp.zero_grad();
      {
        const auto apart = replicated.ddp.no_sync();
        (replicated.model->loss(input_of(context.rank(), step)) / 2).backward();
      }
      (replicated.model->loss(input_of(context.rank(), step)) / 2).backward();
      expect_gradients(*replicated.model, expected_gradients(2, step), step);
      return replicated.ddp.statistics().copied_bytes - before;
    };
    EXPECT_EQ(twice(0), Large::kBytes);
    twice(1);
    for (int step = 2; step < 5; ++step) EXPECT_EQ(twice(step), 0) << step;
  });
}

TEST(GradientsInBuckets, OfChannelsLastConvolutionsAreMadeThere) {
  run_ranks_as_threads(2, [](Context& context) {
    torch::nn::Conv2d layer(torch::nn::Conv2dOptions(32, 32, 3).bias(false));
    layer->weight.set_data(numbers({32, 32, 3, 3}, 1).contiguous(at::MemoryFormat::ChannelsLast));
    DistributedDataParallel ddp(context, layer.ptr());
    const at::Tensor input = numbers({2, 32, 8, 8}, 2).contiguous(at::MemoryFormat::ChannelsLast);
    for (int step = 0; step < 4; ++step) {
      ddp.zero_grad();
      layer->forward(input).square().sum().backward();
      const at::Tensor weight = layer->weight.detach().clone().requires_grad_();
      at::conv2d(input, weight).square().sum().backward();
      EXPECT_TRUE(layer->weight.grad().allclose(weight.grad(), 1e-5, 1e-6));
      EXPECT_EQ(layer->weight.grad().strides(), weight.strides());
    }
    EXPECT_EQ(ddp.statistics().copied_bytes, 2 * 32 * 32 * 9 * 4);
  });
}

/// The loss with another matrix instead of the second one.
at::Tensor loss_with(Large& model, const at::Tensor& x, const at::Tensor& second) {
  return model.third(model.first(x).tanh().matmul(second.t()).tanh()).square().mean();
}

TEST(GradientsInBuckets, AreRightAfterChangeOfTensorUse) {
  run_ranks_as_threads(2, [](Context& context) {
    Replicated replicated(context);
    for (int step = 0; step < 4; ++step) replicated.step(step);
    // The memory that backward allocated for the gradient now belongs to an intermediate tensor, which
    // outlives the step.
    at::Tensor kept;
    const Loss detour = [&](Large& model, const at::Tensor& x) {
      const at::Tensor twice = model.second->weight * 2;
      twice.register_hook([&](const at::Tensor& gradient) {
        if (!kept.defined()) kept = gradient;
      });
      return loss_with(model, x, twice);
    };
    EXPECT_GT(replicated.step(4, detour), 0);
    const at::Tensor before = kept, values = kept.clone();
    for (int step = 5; step < 8; ++step) replicated.step(step);
    EXPECT_TRUE(before.equal(values));
    replicated.step(8, detour);
    replicated.step(9);
  });
}

TEST(GradientsInBuckets, KeepTensorRetainedByHook) {
  run_ranks_as_threads(2, [](Context& context) {
    Replicated replicated(context);
    for (int step = 0; step < 3; ++step) replicated.step(step);
    EXPECT_EQ(replicated.step(3), 0);
    at::Tensor kept;
    const unsigned hook = replicated.model->second->weight.register_hook(
        [&](const at::Tensor& gradient) { kept = gradient.detach(); });
    EXPECT_GT(replicated.step(4), 0);
    Large local;
    local.loss(input_of(context.rank(), 4)).backward();
    EXPECT_TRUE(kept.equal(local.second->weight.grad())) << "it was reduced";
    const at::Tensor before = kept, values = kept.clone();
    replicated.step(5);
    EXPECT_TRUE(before.equal(values));
    replicated.model->second->weight.remove_hook(hook);
    for (int step = 6; step < 9; ++step) replicated.step(step);
  });
}

TEST(GradientsInBuckets, KeepTensorsInPlacesOfOthers) {
  for (const double bucket_mib : {1e-5, 25.0}) {
    run_ranks_as_threads(2, [&](Context& context) {
      Replicated replicated(context, {.bucket_mib = bucket_mib, .first_bucket_mib = bucket_mib});
      for (int step = 0; step < 4; ++step) replicated.step(step);
      // Both tensors exist before the first gradient and have the memory of the gradients.
      std::vector<at::Tensor> kept, values;
      const Loss detours = [&](Large& model, const at::Tensor& x) {
        const at::Tensor second = model.second->weight * 2, third = model.third->weight * 2;
        for (const at::Tensor* each : {&second, &third}) {
          each->register_hook([&](const at::Tensor& gradient) {
            kept.push_back(gradient);
            values.push_back(gradient.clone());
          });
        }
        return model.first(x).tanh().matmul(second.t()).tanh().matmul(third.t()).square().mean();
      };
      for (int step = 4; step < 6; ++step) replicated.step(step, detours);
      for (int step = 6; step < 9; ++step) replicated.step(step);
      for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(kept[i].equal(values[i])) << i;
    });
  }
}

TEST(GradientsInBuckets, ZeroedInPlaceAreNoCopies) {
  run_ranks_as_threads(2, [](Context& context) {
    Replicated replicated(context);
    replicated.step(0);
    const std::int64_t before = replicated.ddp.statistics().copied_bytes;
    for (at::Tensor& parameter : replicated.model->parameters()) {
      parameter.mutable_grad() = parameter.grad().detach();
      parameter.mutable_grad().zero_();
    }
    replicated.model->loss(input_of(context.rank(), 1)).backward();
    expect_gradients(*replicated.model, expected_gradients(2, 1), 1);
    EXPECT_EQ(replicated.ddp.statistics().copied_bytes, before);
  });
}

TEST(GradientsInBuckets, AreRightWithUnreachedParameter) {
  run_ranks_as_threads(2, [](Context& context) {
    Replicated replicated(context, {.unused_parameters = UnusedParameters::kFind});
    for (int step = 0; step < 4; ++step) replicated.step(step);
    // Another matrix gets the memory that backward allocated for the missing gradient.
    std::vector<at::Tensor> others;
    const Loss without_second = [&](Large& model, const at::Tensor& x) {
      others.push_back(model.second->weight.detach().clone().requires_grad_());
      return loss_with(model, x, others.back());
    };
    replicated.step(4, without_second);
    const auto values = [&] { return others.front().grad().clone(); };
    const at::Tensor before = values();
    EXPECT_GT(before.abs().max().item<float>(), 0) << "it was zeroed";
    for (int step = 5; step < 7; ++step) replicated.step(step, without_second);
    for (int step = 7; step < 10; ++step) replicated.step(step);
    EXPECT_TRUE(values().equal(before));
  });
}

TEST(GradientsInBuckets, AreRightAfterThrowingPass) {
  run_ranks_as_threads(2, [](Context& context) {
    Replicated replicated(context);
    for (int step = 0; step < 3; ++step) replicated.step(step);
    const at::Tensor last = replicated.model->third(input_of(context.rank(), 3).narrow(1, 0, 96));
    last.register_hook([](const at::Tensor& gradient) -> at::Tensor {
      throw std::runtime_error("on purpose");
      return gradient;
    });
    replicated.ddp.zero_grad();
    EXPECT_THROW(last.square().mean().backward(), std::runtime_error);
    for (int step = 3; step < 7; ++step) replicated.step(step);
  });
}

TEST(GradientsInBuckets, TwoModelsAlternateBackwardsWithoutCopies) {
  run_ranks_as_threads(2, [](Context& context) {
    Replicated first(context), second(context);
    for (int step = 0; step < 5; ++step) {
      const std::int64_t copied = first.step(step) + second.step(step + 20);
      if (step > 2) {
        EXPECT_EQ(copied, 0) << step;
      }
    }
  });
}

}  // namespace
}  // namespace trireme::parallel
