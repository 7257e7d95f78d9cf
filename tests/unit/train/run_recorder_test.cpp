// GPU values in the records of a run, from a test library that is loaded like NVIDIA's.
#include "trireme/train/report/run_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Written {
  std::string metrics, events, console, page, summary;
};

Written written_by(const std::vector<std::string>& gpus) {
  ::setenv("TRIREME_NVML", test::bin("stand_in_nvml.so").c_str(), 1);
  const test::TemporaryFolder folder;
  RunConfig config;
  config.run.folder = folder.path().string();
  config.run.name = "run";
  config.run.tensorboard = true;
  const RunFolder files{config.run_folder()};
  std::filesystem::create_directories(files.root);
  {
    RunRecorder recorder(config, gpus,
                         {.model = "mlp", .data = "synthetic", .config = describe(config), .total_steps = 2});
    for (const std::int64_t step : {1, 2}) recorder.step({.step = step}, {.steps_s = 1, .steps = 1}, {});
    RunResult result;
    result.status = "completed";
    result.steps = 2;
    result.loading.wait_shares = {0};
    result.loading.stages = {""};
    result.loading.samples = {64};
    result.memory.at_peak[MemoryKind::kActivations] = 1 << 20;
    if (!gpus.empty()) result.memory.device_at_peak[MemoryKind::kWeights] = 3 << 20;
    if (!gpus.empty()) result.memory.device_at_update[MemoryKind::kGradients] = 2 << 20;
    recorder.summary(result);
  }
  Written written{.metrics = read_file(files.metrics()),
                  .events = {},
                  .console = read_file(files.console()),
                  .page = read_file(files.root / "report.html"),
                  .summary = read_file(files.summary())};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(files.root)) {
    if (entry.path().filename().string().starts_with("events.")) written.events += read_file(entry.path());
  }
  return written;
}

TEST(RunRecorder, WritesReadingsOfGpus) {
  const Written written = written_by({"0000:5e:00.0", "0000:3b:00.0"});
  EXPECT_THAT(written.metrics,
              AllOf(HasSubstr(R"("gpu_0_utilization":0.09,"gpu_0_memory_used_bytes":1073741824,)"),
                    HasSubstr(R"("gpu_1_utilization":0.87)"), HasSubstr(R"("gpu_1_power_w":310.5)"),
                    Not(HasSubstr("gpu_0_power_w"))));
  EXPECT_THAT(written.events, AllOf(HasSubstr("step/gpu_1_power_w"), HasSubstr("step/gpu_0_temperature_c")));
  EXPECT_THAT(written.console, HasSubstr("gpu 48% 12.0 GiB"));
  EXPECT_THAT(written.page, AllOf(HasSubstr("GPU utilization"), HasSubstr("GPU temperature")));
}

TEST(RunRecorder, ReportsDeviceAndHostMemorySeparately) {
  const Written written = written_by({"0000:5e:00.0"});
  EXPECT_THAT(written.summary, AllOf(HasSubstr("\"memory_peak_activations_bytes\": 1048576"),
                                     HasSubstr("\"memory_device_peak_weights_bytes\": 3145728"),
                                     HasSubstr("\"memory_device_update_gradients_bytes\": 2097152")));
  EXPECT_THAT(written.console,
              AllOf(HasSubstr("memory of rank 0 at its peak: activations 1.0 MiB"),
                    HasSubstr("memory of the device of rank 0 at its peak: weights 3.0 MiB")));
  EXPECT_THAT(written.page, HasSubstr("3.0 MiB on the device"));
  EXPECT_THAT(written_by({}).summary, Not(HasSubstr("memory_device")));
}

TEST(RunRecorder, WritesNothingOfGpusWithoutThem) {
  for (const std::vector<std::string>& gpus : {std::vector<std::string>{}, {"0000:99:00.0"}}) {
    const Written written = written_by(gpus);
    EXPECT_THAT(written.metrics + written.events + written.console, Not(HasSubstr("gpu")));
    EXPECT_THAT(written.page, Not(HasSubstr("GPU")));
  }
}

}  // namespace
}  // namespace trireme::train
