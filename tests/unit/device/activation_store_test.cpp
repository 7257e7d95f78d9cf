// Activations saved on a device and offloaded come back with the same bits, although no wait for their copies
// was made.
#include "trireme/model/activation_store.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>

#include "tests/support/stand_in_device.h"
#include "tests/support/temporary_folder.h"

namespace trireme::model {
namespace {

/// The gradient of the weight over `steps` steps. Each saves other numbers.
at::Tensor gradient(const ActivationStore* store, int steps) {
  at::manual_seed(1);
  at::Tensor weight = at::randn({32, 32}).to(test::kStandInDevice).set_requires_grad(true);
  for (int step = 0; step < steps; ++step) {
    at::Tensor x = at::randn({16, 32}).to(test::kStandInDevice);
    at::Tensor loss;
    {
      std::optional<ActivationStore::Scope> scope;
      if (store != nullptr) scope.emplace(*store);
      for (int layer = 0; layer < 4; ++layer) x = at::relu(at::tanh(x.mm(weight))) * x;
      loss = x.sum();
    }
    loss.backward();
  }
  return weight.grad().cpu();
}

void expect_same_bits(ActivationStoreOptions options) {
  options.device = c10::Device(std::string(test::kStandInDevice) + ":0");
  options.min_bytes = 1;
  options.bytes_under_way = 4096;
  const ActivationStore store(options);
  EXPECT_TRUE(gradient(&store, 3).equal(gradient(nullptr, 3)));
  EXPECT_EQ(store.kept_bytes(), 0);
  EXPECT_GT(store.max_kept_bytes(), 10'000);
}

TEST(ActivationsOfADevice, UseHostMemoryWithoutWaits) {
  const auto reads_of = [](const ActivationStore* store) {
    const std::int64_t before = test::reads_from_stand_in();
    gradient(store, 2);
    return test::reads_from_stand_in() - before;
  };
  const ActivationStore store(
      {.owner = "rank 0", .device = c10::Device(std::string(test::kStandInDevice) + ":0"), .min_bytes = 1});
  const std::int64_t copies_before = test::copies_on_own_streams_of_stand_in();
  EXPECT_EQ(reads_of(&store), reads_of(nullptr));
  EXPECT_GT(test::copies_on_own_streams_of_stand_in(), copies_before) << "none while the device computes";
  expect_same_bits({.owner = "rank 0"});
}

TEST(ActivationsOfADevice, LiveInAFile) {
  const test::TemporaryFolder folder;
  expect_same_bits({.folder = folder.path(), .owner = "rank 0"});
}

}  // namespace
}  // namespace trireme::model
