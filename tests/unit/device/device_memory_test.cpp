// Bytes of device memory and host memory are counted separately, by kind.
#include "trireme/parallel/device_memory.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tests/support/stand_in_device.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/step/trainer.h"

namespace trireme::parallel {
namespace {

const c10::Device kThirdDevice{std::string(test::kStandInDevice) + ":2"};
constexpr std::int64_t kNumel = 1 << 16, kBytes = 4 * kNumel;

at::Tensor on_device() { return at::empty({kNumel}, at::TensorOptions().device(kThirdDevice)); }
MemoryUse now() { return DeviceMemory::of_process().now(kThirdDevice); }

TEST(DeviceMemory, HasKindOfOwnerUntilFreed) {
  const MemoryUse before = now();
  const std::int64_t on_host = MemoryLedger::of_process().now().total();
  at::Tensor tensor = on_device();
  EXPECT_EQ(now()[MemoryKind::kActivations] - before[MemoryKind::kActivations], kBytes)
      << "nobody has named it";
  count_as(MemoryKind::kWeights, tensor.narrow(0, 5, 7));  // counts for the whole memory
  EXPECT_EQ(now()[MemoryKind::kActivations], before[MemoryKind::kActivations]);
  EXPECT_EQ(now()[MemoryKind::kWeights] - before[MemoryKind::kWeights], kBytes);
  count_as(MemoryKind::kGradients, tensor);
  EXPECT_EQ(now()[MemoryKind::kWeights], before[MemoryKind::kWeights]);
  EXPECT_EQ(now()[MemoryKind::kGradients] - before[MemoryKind::kGradients], kBytes);
  const c10::Device other(std::string(test::kStandInDevice) + ":3");
  EXPECT_EQ(DeviceMemory::of_process().now(other)[MemoryKind::kGradients], 0) << "of each device its own";
  EXPECT_EQ(MemoryLedger::of_process().now().total(), on_host);
  tensor.reset();
  EXPECT_EQ(now().total(), before.total());
}

TEST(DeviceMemory, RemembersThePeakOfTheAllocator) {
  DeviceMemory& memory = DeviceMemory::of_process();
  const at::Tensor kept = on_device();
  count_as(MemoryKind::kOptimizer, kept);
  memory.reset_peak(kThirdDevice);
  const MemoryUse before = memory.at_peak(kThirdDevice);
  on_device();
  const MemoryUse peak = memory.at_peak(kThirdDevice);
  EXPECT_EQ(peak[MemoryKind::kActivations] - before[MemoryKind::kActivations], kBytes);
  EXPECT_EQ(peak[MemoryKind::kOptimizer], before[MemoryKind::kOptimizer]);
  memory.reset_peak(kThirdDevice);
  EXPECT_EQ(memory.at_peak(kThirdDevice).total(), before.total());
}

TEST(DeviceMemory, ForgetsFreedMemoryDespiteRenaming) {
  const std::int64_t before = now().total();
  for (int i = 0; i < 1000; ++i) count_as(MemoryKind::kGradients, on_device());
  EXPECT_EQ(now().total(), before);
}

TEST(DeviceMemory, SeparatesTrainingFromHostMemory) {
  train::RunConfig config;
  config.data.name = "synthetic";
  config.model.hidden = {512};
  config.train = {.global_batch = 64};
  config.optimizer = {.name = "adam", .lr = 0.1};
  config.comm.device = test::kStandInDevice;
  comm::run_ranks_as_threads(
      1,
      [&](comm::Context& context) {
        const data::DataSource data = train::open_data(config);
        train::Trainer trainer(config, context, data);
        for (int i = 0; i < 3; ++i) trainer.step();
        std::int64_t bytes = 0;
        for (const auto& [name, parameter] : trainer.parameters())
          bytes += static_cast<std::int64_t>(parameter.nbytes());
        const train::MemoryReport report = trainer.memory();
        for (const MemoryUse& use : {report.device_at_update, report.device_at_peak}) {
          EXPECT_EQ(use[MemoryKind::kWeights], bytes);
          // Plus the update counters next to the two moments of each parameter.
          EXPECT_NEAR(static_cast<double>(use[MemoryKind::kOptimizer]), 2.0 * static_cast<double>(bytes),
                      100);
        }
        EXPECT_GE(report.device_at_update[MemoryKind::kGradients], bytes);
        EXPECT_GT(report.device_at_peak[MemoryKind::kActivations], 0);
        EXPECT_EQ(report.at_peak[MemoryKind::kWeights] + report.at_peak[MemoryKind::kOptimizer], 0);
        const train::MemoryReport largest = train::largest(context, report);
        EXPECT_EQ(largest.device_at_peak.bytes, report.device_at_peak.bytes);
        EXPECT_EQ(largest.device_at_update.bytes, report.device_at_update.bytes);
      },
      {.device = test::kStandInDevice});
}

}  // namespace
}  // namespace trireme::parallel
