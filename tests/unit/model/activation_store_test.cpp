// Offloaded activations come back with the same bits and free their memory in between. Nothing remains,
// however a forward or a backward ends.
#include "trireme/model/activation_store.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tanh.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/scratch_files.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/model/learning.h"
#include "trireme/base/error.h"
#include "trireme/model/checkpointed.h"

namespace trireme::model {
namespace {

using test::learning;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::shared_ptr<ActivationStore> store_in(const test::TemporaryFolder& folder,
                                          std::int64_t bytes_under_way = 1 << 20,
                                          std::int64_t min_bytes = 1) {
  return std::make_shared<ActivationStore>(ActivationStoreOptions{.folder = folder.path(),
                                                                  .owner = "rank 0",
                                                                  .min_bytes = min_bytes,
                                                                  .bytes_under_way = bytes_under_way});
}

/// A block of a transformer: views, saved outputs, small and large tensors, and integers.
struct Block : torch::nn::Module {
  Block()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        mlp(register_module("mlp", torch::nn::Linear(kWidth, kWidth))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv->forward(norm->forward(x)).chunk(3, -1);
    const auto heads = [](const at::Tensor& part) {
      return part.view({part.size(0), part.size(1), 2, -1}).transpose(1, 2);
    };
    const at::Tensor attended =
        at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.1, true);
    return x + at::tanh(mlp->forward(at::relu(attended.transpose(1, 2).flatten(2))));
  }

  static constexpr std::int64_t kWidth = 32;
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, mlp;
};

class Net {
 public:
  Net() {
    at::manual_seed(1);
    for (int i = 0; i < 4; ++i) blocks_.push_back(std::make_shared<Block>());
  }

  std::vector<Layer> layers() const {
    std::vector<Layer> all;
    for (const auto& block : blocks_) {
      Layer layer{.name = text("block ", all.size()),
                  .forward = [block](const at::Tensor& x) { return block->forward(x); },
                  .modules = {block}};
      for (const auto& each : block->named_parameters())
        layer.parameters.emplace_back(each.key(), each.value());
      all.push_back(std::move(layer));
    }
    return all;
  }

  /// The loss of one forward through these layers.
  static at::Tensor loss(const std::vector<Layer>& layers, int batch) {
    at::manual_seed(100 + static_cast<std::uint64_t>(batch));
    at::Tensor x = learning({3, 16, Block::kWidth});
    for (const Layer& layer : layers) x = layer.forward(x);
    return x.square().sum();
  }

  /// Returns the gradients of all parameters and resets them.
  Tensors take_gradients() const {
    Tensors all;
    for (const auto& block : blocks_) {
      for (at::Tensor& parameter : block->parameters())
        all.push_back(std::exchange(parameter.mutable_grad(), {}));
    }
    return all;
  }

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
};

std::vector<Layer> all_kept_in(const std::shared_ptr<ActivationStore>& store, std::vector<Layer> layers) {
  for (Layer& layer : layers) layer = kept_in(store, std::move(layer));
  return layers;
}

void expect_same_bits(const Tensors& found, const Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
}

/// Waits until the condition is true. The timeout of the test is the only limit.
template <class Condition>
void wait_until(const Condition& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(ActivationStore, GivesSameBitsWithAnyBudget) {
  const Net net;
  Net::loss(net.layers(), 0).backward();
  const Tensors expected = net.take_gradients();
  for (const std::int64_t bytes : {1, 20'000, 1 << 30}) {
    const test::TemporaryFolder folder;
    const auto store = store_in(folder, bytes);
    const auto layers = all_kept_in(store, net.layers());
    for (int again = 0; again < 3; ++again) {
      const at::Tensor loss = Net::loss(layers, 0);
      EXPECT_GT(store->kept_bytes(), 100'000);
      loss.backward();
      expect_same_bits(net.take_gradients(), expected);
      EXPECT_EQ(store->kept_bytes(), 0);
    }
  }
}

TEST(ActivationStore, KeepsSeveralGraphsInAnyBackwardOrder) {
  const Net net;
  for (int batch = 0; batch < 3; ++batch) Net::loss(net.layers(), batch).backward();
  const Tensors expected = net.take_gradients();
  const test::TemporaryFolder folder;
  const auto store = store_in(folder, 40'000);
  const auto layers = all_kept_in(store, net.layers());
  std::vector<at::Tensor> losses;
  for (int batch = 0; batch < 3; ++batch) losses.push_back(Net::loss(layers, batch));
  for (at::Tensor& loss : losses) {
    loss.backward();
    loss.reset();
  }
  expect_same_bits(net.take_gradients(), expected);
  EXPECT_EQ(store->kept_bytes(), 0);
  // The file has the size of the largest simultaneous content, and keeps it.
  const auto file = test::scratch_files_of(::getpid()).at(0);
  const auto size = std::filesystem::file_size(file);
  EXPECT_EQ(size, static_cast<std::uintmax_t>(store->max_kept_bytes()));
  for (int again = 0; again < 3; ++again) Net::loss(layers, again).backward();
  EXPECT_EQ(std::filesystem::file_size(file), size);
}

TEST(ActivationStore, OffloadedTensorsLeaveMemory) {
  const test::TemporaryFolder folder;
  const auto store = store_in(folder);
  const at::Tensor x = learning({64, 64});
  at::Tensor loss;
  auto memory = [&] {
    const ActivationStore::Scope scope(*store);
    const at::Tensor saved = at::tanh(x);
    loss = at::tanh(saved).sum();
    return saved.storage().getWeakStorageImpl();
  }();
  wait_until([&] { return memory.use_count() == 0; });
  loss.backward();
  at::Tensor plain = x.detach().clone().requires_grad_(true);
  at::tanh(at::tanh(plain)).sum().backward();
  EXPECT_TRUE(x.grad().equal(plain.grad()));
}

TEST(ActivationStore, MemoryOfSeveralTensorsTravelsOnce) {
  const test::TemporaryFolder folder;
  const auto store = store_in(folder);
  const at::Tensor x = learning({8, 30});
  const at::Tensor loss = [&] {
    const ActivationStore::Scope scope(*store);
    const auto parts = at::tanh(x).chunk(3, -1);  // its output is saved, and so are views of it
    return (parts[0] * parts[1] + parts[1] * parts[2]).sum();
  }();
  EXPECT_EQ(store->kept_bytes(), static_cast<std::int64_t>(x.nbytes()));
  loss.backward();
  EXPECT_EQ(store->kept_bytes(), 0);
}

TEST(ActivationStore, KeepsSmallOwnAndPartialTensors) {
  const test::TemporaryFolder folder;
  const auto store = store_in(folder, 1 << 20, /*min_bytes=*/1024);
  const at::Tensor weight = learning({64, 64}), buffer = at::ones({64, 64}), small = learning({4, 4});
  const at::Tensor large = at::ones({64, 64});
  const ActivationStore::Scope scope(*store, {buffer});
  const at::Tensor kept_none = (weight * buffer).sum() + at::tanh(small).sum() + (weight.t() * buffer).sum() +
                               (learning({64}) * large.select(0, 3)).sum();
  EXPECT_EQ(store->kept_bytes(), 0);
  const at::Tensor kept = (weight * large).sum();
  EXPECT_EQ(store->kept_bytes(), static_cast<std::int64_t>(large.nbytes()));
}

TEST(ActivationStore, InputsOfRecomputedLayersLeave) {
  const Net net;
  Net::loss(net.layers(), 0).backward();
  const Tensors expected = net.take_gradients();
  const test::TemporaryFolder folder;
  const auto store = store_in(folder);
  std::vector<Layer> layers = net.layers();
  for (Layer& layer : layers) layer = kept_in(store, checkpointed(std::move(layer)));
  const at::Tensor loss = Net::loss(layers, 0);
  // All inputs except the first, which belongs to the caller.
  EXPECT_EQ(store->kept_bytes(), 3 * 3 * 16 * Block::kWidth * 4);
  loss.backward();
  expect_same_bits(net.take_gradients(), expected);
}

TEST(ActivationStore, RetainedGraphRunsAgain) {
  const Net net;
  for (int i = 0; i < 2; ++i) Net::loss(net.layers(), 0).backward();
  const Tensors expected = net.take_gradients();
  const test::TemporaryFolder folder;
  const auto store = store_in(folder, 1);
  at::Tensor loss = Net::loss(all_kept_in(store, net.layers()), 0);
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  expect_same_bits(net.take_gradients(), expected);
  EXPECT_EQ(store->kept_bytes(), 0);
}

TEST(ActivationStore, GraphsMayOutliveIt) {
  const Net net;
  Net::loss(net.layers(), 0).backward();
  const Tensors expected = net.take_gradients();
  at::Tensor loss;
  {
    const test::TemporaryFolder folder;
    loss = Net::loss(all_kept_in(store_in(folder), net.layers()), 0);
  }
  loss.backward();
  expect_same_bits(net.take_gradients(), expected);
}

TEST(ActivationStore, ServesThreadsBesideEachOther) {
  const Net net;
  Net::loss(net.layers(), 0).backward();
  const Tensors expected = net.take_gradients();
  const test::TemporaryFolder folder;
  const auto store = store_in(folder, 30'000);
  std::vector<Net> nets(3);
  std::vector<Tensors> found(3);
  std::vector<std::thread> threads;
  std::mutex seeds;  // protects the generator of the process
  for (std::size_t i = 0; i < nets.size(); ++i) {
    threads.emplace_back([&, i] {
      at::Tensor loss;
      {
        const std::lock_guard lock(seeds);
        loss = Net::loss(all_kept_in(store, nets[i].layers()), 0);
      }
      loss.backward();
      found[i] = nets[i].take_gradients();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensors& each : found) expect_same_bits(each, expected);
}

TEST(ActivationStore, RejectsTensorsChangedInPlace) {
  const test::TemporaryFolder folder;
  const auto store = store_in(folder, 1 << 20, /*min_bytes=*/1024);
  const auto refused = [&](at::IntArrayRef sizes) {
    const at::Tensor x = learning(sizes);
    const ActivationStore::Scope scope(*store);
    const at::Tensor saved = at::tanh(x), loss = at::tanh(saved).sum();
    at::NoGradGuard no_grad;
    saved.add_(1);
    EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<std::exception>(HasSubstr("changed in place")));
  };
  refused({4});  // stays in memory
  const at::Tensor weight = learning({64, 64}), x = learning({64, 64});
  const at::Tensor loss = [&] {
    const ActivationStore::Scope scope(*store);
    return at::tanh(x.mm(weight)).sum();
  }();
  {
    const at::NoGradGuard no_grad;
    weight.add_(1);
  }
  EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<std::exception>(HasSubstr("changed in place")));
}

TEST(ActivationStore, TensorsBeforeAndAfterChangeDiffer) {
  const test::TemporaryFolder folder;
  const auto store = store_in(folder, 1, /*min_bytes=*/1);
  const at::Tensor x = learning({64}), y = learning({64});
  at::Tensor numbers = at::ones({64});
  const ActivationStore::Scope scope(*store);
  const at::Tensor first = (x * numbers).sum();
  // The next offloaded tensor waits for the previous one.
  const at::Tensor other = at::tanh(y).sum();
  numbers.mul_(3);
  const at::Tensor second = (y * numbers).sum();
  (first + second).backward();
  EXPECT_TRUE(x.grad().equal(at::ones({64})));
  EXPECT_TRUE(y.grad().equal(at::ones({64}) * 3));
}

TEST(ActivationStore, AForwardThatThrowsLeavesNothing) {
  const Net net;
  Net::loss(net.layers(), 0).backward();
  const Tensors expected = net.take_gradients();
  const test::TemporaryFolder folder;
  const auto store = store_in(folder);
  std::vector<Layer> layers = net.layers();
  layers[2].forward = [](const Fields&) -> Fields { throw InternalError("in the middle"); };
  EXPECT_THROW(Net::loss(all_kept_in(store, layers), 0), InternalError);
  EXPECT_EQ(store->kept_bytes(), 0);
  Net::loss(all_kept_in(store, net.layers()), 0).backward();
  expect_same_bits(net.take_gradients(), expected);
}

TEST(ActivationStore, FullDiskEndsForwardButNotNext) {
  const Net net;
  Net::loss(net.layers(), 0).backward();
  const Tensors expected = net.take_gradients();
  const test::TemporaryFolder folder;
  const auto store = store_in(folder);
  const auto layers = all_kept_in(store, net.layers());
  {
    const test::FileSizeLimit limit(50'000);
    EXPECT_THAT(
        [&] { Net::loss(layers, 0); },
        ThrowsMessage<DataError>(AllOf(HasSubstr("rank 0: cannot reserve"), HasSubstr("of activations"),
                                       HasSubstr(folder.path().string()))));
  }
  EXPECT_EQ(store->kept_bytes(), 0);
  Net::loss(layers, 0).backward();
  expect_same_bits(net.take_gradients(), expected);
}

TEST(ActivationStore, FailedWriteIsReportedByNextOffload) {
  const Net net;
  Net::loss(net.layers(), 0).backward();
  const Tensors expected = net.take_gradients();
  const test::TemporaryFolder folder;
  const auto store = store_in(folder, 1);
  const auto layers = all_kept_in(store, net.layers());
  Net::loss(layers, 0).backward();  // its space is reserved from here on
  net.take_gradients();
  {
    const test::FileSizeLimit limit(20'000);
    EXPECT_THAT([&] { Net::loss(layers, 0); },
                ThrowsMessage<DataError>(AllOf(HasSubstr("rank 0: cannot write"), HasSubstr("activations"))));
  }
  EXPECT_EQ(store->kept_bytes(), 0);
  Net::loss(layers, 0).backward();
  expect_same_bits(net.take_gradients(), expected);
}

TEST(ActivationStore, FailedReadEndsBackwardButNotNext) {
  const Net net;
  Net::loss(net.layers(), 0).backward();
  const Tensors expected = net.take_gradients();
  const test::TemporaryFolder folder;
  const auto store = store_in(folder, 1);
  const auto layers = all_kept_in(store, net.layers());
  const auto file = test::scratch_files_of(::getpid()).at(0);
  {
    const at::Tensor loss = Net::loss(layers, 0);
    // Each write waits for the previous one. A late one would extend the file again.
    at::Tensor last;
    const auto memory = [&] {
      const ActivationStore::Scope scope(*store);
      const at::Tensor saved = at::tanh(learning({64}));
      last = at::tanh(saved);
      return saved.storage().getWeakStorageImpl();
    }();
    const auto of_last = last.storage().getWeakStorageImpl();
    const at::Tensor graph = last.sum();
    last.reset();
    wait_until([&] { return memory.use_count() == 0 && of_last.use_count() == 0; });
    ASSERT_EQ(::truncate(file.c_str(), 1000), 0);
    EXPECT_THAT([&] { loss.backward(); },
                ThrowsMessage<DataError>(AllOf(HasSubstr("rank 0: cannot read"), HasSubstr("activations"))));
  }
  net.take_gradients();
  EXPECT_EQ(store->kept_bytes(), 0);
  Net::loss(layers, 0).backward();
  expect_same_bits(net.take_gradients(), expected);
}

TEST(ActivationStore, RejectsInvalidOptions) {
  EXPECT_THAT([] { ActivationStore({.owner = "rank 0"}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("name a folder")));
  const test::TemporaryFolder folder;
  EXPECT_THAT([] { ActivationStore({.folder = "/proc/none", .owner = "rank 3"}); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("rank 3"), HasSubstr("/proc/none"))));
}

}  // namespace
}  // namespace trireme::model
