// The memory layout of gradients and the start order of buckets, observed through a hook that gets every
// bucket.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <map>
#include <string>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/text.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/data/internal/bucket.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::numbers;

/// Four layers that are used in the given order.
struct Layers : torch::nn::Module {
  explicit Layers(std::vector<std::size_t> the_order) : order(std::move(the_order)) {
    for (const char* name : {"a", "b", "c", "d"}) {
      layers.push_back(register_module(name, torch::nn::Linear(4, 4)));
    }
    test::fill_parameters(*this);
  }
  at::Tensor forward(at::Tensor x) {
    for (const std::size_t layer : order) x = layers[layer]->forward(x).tanh();
    return x;
  }
  std::vector<std::size_t> order;
  std::vector<torch::nn::Linear> layers;
};

/// Reduces as usual and records the flat tensors in the order in which their reductions started.
class RecordingHook : public CommHook {
 public:
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) override {
    started.push_back(bucket.flat);
    return all_reduce_->start(group, bucket, scale);
  }
  std::vector<at::Tensor> started;

 private:
  std::shared_ptr<CommHook> all_reduce_ = make_comm_hook("none");
};

const char* begin_of(const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }

bool lies_in(const at::Tensor& flat, const char* begin, std::size_t num_bytes) {
  return begin >= begin_of(flat) && begin + num_bytes <= begin_of(flat) + flat.nbytes();
}

/// Names of the parameters in the memory order of their gradients: bucket by bucket, then by address.
std::vector<std::string> names_in_buckets(const torch::nn::Module& module,
                                          const std::vector<at::Tensor>& buckets) {
  std::vector<std::string> names;
  for (const at::Tensor& flat : buckets) {
    std::map<const char*, std::string> by_address;
    for (const auto& item : module.named_parameters()) {
      const at::Tensor& gradient = item.value().grad();
      if (lies_in(flat, begin_of(gradient), gradient.nbytes())) by_address[begin_of(gradient)] = item.key();
    }
    for (const auto& [address, name] : by_address) names.push_back(name);
  }
  return names;
}

// One tensor in the first bucket, then up to 100 bytes per bucket. A weight has 64 bytes and a bias 16.
DataParallelOptions small_buckets(const std::shared_ptr<RecordingHook>& hook) {
  return {.bucket_mib = 1e-4, .first_bucket_mib = 1e-5, .hook = hook};
}

void run_backward(Layers& model, const Context& context) {
  model.forward(numbers({3, 4}, 1 + context.rank())).square().sum().backward();
}

TEST(Buckets, AreRebuiltInOrderOfRankZero) {
  run_ranks_as_threads(3, [](Context& context) {
    const std::vector<std::size_t> as_registered = {0, 1, 2, 3}, mixed = {1, 3, 0, 2};
    auto model = std::make_shared<Layers>(context.rank() == 0 ? mixed : as_registered);
    auto hook = std::make_shared<RecordingHook>();
    DistributedDataParallel ddp(context, model, small_buckets(hook));
    std::vector<std::string> seen;
    for (const auto& item : model->named_parameters()) {
      item.value().register_hook([&seen, name = item.key()](const at::Tensor&) { seen.push_back(name); });
    }
    run_backward(*model, context);
    const auto seen_by = context.world().all_gather_text(join(seen));
    ASSERT_NE(seen_by[0], seen_by[1]);
    for (int pass = 2; pass <= 3; ++pass) {
      hook->started.clear();
      run_backward(*model, context);
      EXPECT_EQ(join(names_in_buckets(*model, hook->started)), seen_by[0]) << "pass " << pass;
      EXPECT_EQ(hook->started.size(), 3u) << "of 1, 3 and 4 tensors";
    }
  });
}

// This holds for any number of buckets, and after the reordering, too. The backend stores the gradients only
// once.
TEST(Buckets, ShareMemoryPerTypeFromFirstPass) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = std::make_shared<Layers>(std::vector<std::size_t>{1, 3, 0, 2});
    auto hook = std::make_shared<RecordingHook>();
    DistributedDataParallel ddp(context, model, {.bucket_mib = 1e-5, .first_bucket_mib = 1e-5, .hook = hook});
    for (int pass = 1; pass <= 3; ++pass) {
      ddp.zero_grad();
      run_backward(*model, context);
    }
    ASSERT_EQ(hook->started.size(), 3u * 8);
    for (const at::Tensor& flat : hook->started)
      EXPECT_EQ(flat.storage().data(), hook->started[0].storage().data());
  });
}

TEST(Buckets, CarryFirstGradientsIntoNewOrder) {
  const std::vector<std::size_t> order = {1, 3, 0, 2};
  std::vector<at::Tensor> expected;
  for (int rank = 0; rank < 2; ++rank) {
    Layers alone(order);
    alone.forward(numbers({3, 4}, 1 + rank)).square().sum().backward();
    const auto parameters = alone.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (rank == 0) expected.push_back(parameters[i].grad().clone());
      if (rank == 1) expected[i].add_(parameters[i].grad()).div_(2);
    }
  }
  for (const double bucket_mib : {1e-5, 1e-4, 1.0}) {
    run_ranks_as_threads(2, [&](Context& context) {
      auto model = std::make_shared<Layers>(order);
      DistributedDataParallel ddp(context, model, {.bucket_mib = bucket_mib, .first_bucket_mib = bucket_mib});
      run_backward(*model, context);
      ASSERT_TRUE(ddp.statistics().rebuilt);
      const auto parameters = model->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        EXPECT_TRUE(at::equal(parameters[i].grad(), expected[i])) << "parameter " << i;
    });
  }
}

// Zeroing a module replaces the tensor of each gradient by another one over the same memory.
TEST(Buckets, CarryUnusedZeroGradientsIntoNewOrder) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = std::make_shared<Layers>(std::vector<std::size_t>{0, 1, 2, 3});
    DistributedDataParallel ddp(context, model, {.unused_parameters = UnusedParameters::kFind});
    {
      const auto quiet = ddp.no_sync();
      run_backward(*model, context);
    }
    model->zero_grad(/*set_to_none=*/false);
    model->order = {3, 1};
    run_backward(*model, context);
    ASSERT_TRUE(ddp.statistics().rebuilt);
    for (const std::size_t unused : {0, 2})
      EXPECT_EQ(model->layers[unused]->weight.grad().count_nonzero().item<int>(), 0) << "layer " << unused;
  });
}

class CompressedBuckets : public testing::TestWithParam<const char*> {};

// A unit in the last place of bf16 is 1/256, and there are two roundings.
TEST_P(CompressedBuckets, StayApartInTheirOwnMemory) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = std::make_shared<Layers>(std::vector<std::size_t>{1, 3, 0, 2});
    auto exact_model = std::make_shared<Layers>(model->order);
    DistributedDataParallel ddp(
        context, model, {.bucket_mib = 1e-5, .first_bucket_mib = 1e-5, .hook = make_comm_hook(GetParam())});
    DistributedDataParallel exact(context, exact_model);
    for (int pass = 1; pass <= 3; ++pass) {
      ddp.zero_grad();
      exact.zero_grad();
      run_backward(*model, context);
      run_backward(*exact_model, context);
      const auto got = model->parameters(), expected = exact_model->parameters();
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double bound = expected[i].grad().abs().max().item<double>() * 2 / 256 + 1e-6;
        EXPECT_LE((got[i].grad() - expected[i].grad()).abs().max().item<double>(), bound) << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, CompressedBuckets, testing::Values("bf16", "fp16"));

at::Tensor part_of(const at::Tensor& memory, std::int64_t begin, std::int64_t size) {
  return memory.narrow(0, begin, size);
}

/// Moves consecutive parts of the given sizes into `order`.
void expect_moved(const std::vector<std::int64_t>& sizes, const std::vector<std::size_t>& order) {
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) total += size;
  at::Tensor memory = numbers({total}, 1);
  std::vector<at::Tensor> from, expected;
  for (std::int64_t at = 0; const std::int64_t size : sizes) {
    from.push_back(part_of(memory, at, size));
    at += size;
  }
  std::vector<Move> moves;
  for (std::int64_t at = 0; const std::size_t number : order) {
    expected.push_back(from[number].clone());
    moves.push_back({from[number], part_of(memory, at, sizes[number])});
    at += sizes[number];
  }
  move_all(moves);
  EXPECT_TRUE(at::equal(memory, at::cat(expected)));
}

TEST(Moves, GivePartsTheirPlaceInAnyOrder) {
  expect_moved({5, 3, 8, 1, 4}, {0, 1, 2, 3, 4});
  expect_moved({5, 3, 8, 1, 4}, {4, 3, 2, 1, 0});
  expect_moved({1, 2, 3, 4, 50}, {4, 0, 1, 2, 3});
  expect_moved({50, 4, 3, 2, 1}, {1, 2, 3, 4, 0});
  std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5};
  do {
    expect_moved({7, 0, 2, 9, 4, 1}, order);
  } while (std::ranges::next_permutation(order).found);
}

TEST(Buckets, KeepGradientsInPlacePermanently) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = std::make_shared<Layers>(std::vector<std::size_t>{0, 1, 2, 3});
    auto hook = std::make_shared<RecordingHook>();
    DistributedDataParallel ddp(context, model, small_buckets(hook));
    const auto places = [&] {
      std::vector<const char*> result;
      for (const auto& parameter : model->parameters()) result.push_back(begin_of(parameter.grad()));
      return result;
    };
    run_backward(*model, context);  // the buckets are rebuilt after this pass
    const auto expected = places();
    hook->started.clear();
    run_backward(*model, context);
    const auto parameters = model->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto holds = [&](const at::Tensor& flat) {
        return lies_in(flat, expected[i], parameters[i].nbytes());
      };
      EXPECT_EQ(std::ranges::count_if(hook->started, holds), 1) << "parameter " << i;
    }
    EXPECT_EQ(places(), expected) << "added up";
    model->zero_grad(/*set_to_none=*/false);
    EXPECT_EQ(places(), expected) << "zeroed in place";
    run_backward(*model, context);
    EXPECT_EQ(places(), expected) << "after zeroing in place";
    ddp.zero_grad();
    EXPECT_FALSE(model->layers[0]->weight.grad().defined());
    run_backward(*model, context);
    EXPECT_EQ(places(), expected) << "after dropping the gradients";
  });
}

}  // namespace
}  // namespace trireme::parallel
