// Values that GPUs report, from a test library that is loaded like NVIDIA's.
#include "trireme/telemetry/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/paths.h"

namespace trireme::telemetry {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kLibrary = test::bin("stand_in_nvml.so");

/// Makes the library return an error while the object exists.
class Returned {
 public:
  Returned(const char* variable, const char* code) : variable_(variable) { ::setenv(variable, code, 1); }
  ~Returned() { ::unsetenv(variable_); }
  Returned(const Returned&) = delete;
  Returned& operator=(const Returned&) = delete;

 private:
  const char* const variable_;
};

void expect_nothing(const Nvml& nvml) {
  EXPECT_EQ(nvml.num_devices(), 0);
  EXPECT_EQ(nvml.driver_version(), "");
  EXPECT_FALSE(nvml.read(0));
  EXPECT_FALSE(nvml.read("0000:3b:00.0"));
}

TEST(Nvml, ReadsEachGpu) {
  const Nvml nvml(kLibrary);
  EXPECT_EQ(nvml.missing_because(), "");
  EXPECT_EQ(nvml.driver_version(), "550.0.stand-in");
  ASSERT_EQ(nvml.num_devices(), 2);
  const auto first = nvml.read(0), second = nvml.read(1);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->name, "Stand-in A");
  EXPECT_EQ(first->utilization, 0.87);
  EXPECT_EQ(first->memory_used_bytes, std::int64_t{12} << 30);
  EXPECT_EQ(first->memory_total_bytes, std::int64_t{80} << 30);
  EXPECT_EQ(first->temperature_c, 65);
  EXPECT_EQ(first->power_w, 310.5);
  EXPECT_EQ(describe(*first), "87 %, 12.0 GiB of 80.0 GiB, 65 C, 311 W");
  EXPECT_EQ(second->power_w, std::nullopt) << "it says that this is not supported";
  EXPECT_EQ(describe(*second), "9 %, 1.0 GiB of 24.0 GiB, 41 C");
  EXPECT_FALSE(nvml.read(2));
}

TEST(Nvml, FindsGpuByPciBusId) {
  const Nvml nvml(kLibrary);
  ASSERT_TRUE(nvml.read("0000:5e:00.0"));
  EXPECT_EQ(nvml.read("0000:5e:00.0")->name, "Stand-in B");
  EXPECT_FALSE(nvml.read("0000:00:00.0"));
}

TEST(Nvml, SaysThatThereIsNoLibrary) {
  const Nvml nvml("/nowhere/libnvidia-ml.so.1");
  EXPECT_THAT(nvml.missing_because(),
              AllOf(HasSubstr("cannot load /nowhere/libnvidia-ml.so.1"), HasSubstr("NVIDIA's driver")));
  expect_nothing(nvml);
}

TEST(Nvml, NamesFunctionMissingInOldLibrary) {
  const Nvml nvml(test::bin("stand_in_nvml_old.so"));
  EXPECT_THAT(nvml.missing_because(), AllOf(HasSubstr("has no function nvmlSystemGetDriverVersion"),
                                            HasSubstr("update NVIDIA's driver")));
  expect_nothing(nvml);
}

TEST(Nvml, ReportsVersionMismatchOfDriver) {
  const Returned error("STAND_IN_NVML_INIT", "18");
  const Nvml nvml(kLibrary);
  EXPECT_THAT(nvml.missing_because(),
              AllOf(HasSubstr("Driver/library version mismatch (18)"), HasSubstr("restart the host")));
  expect_nothing(nvml);
}

TEST(Nvml, HasNoReadingOfLostGpu) {
  const Nvml nvml(kLibrary);
  ASSERT_TRUE(nvml.read(0));
  const Returned error("STAND_IN_NVML_READ", "15");
  EXPECT_FALSE(nvml.read(0));
  EXPECT_EQ(nvml.num_devices(), 2);
}

TEST(Nvml, AddsReadingsToARecord) {
  const Nvml nvml(kLibrary);
  Record record{.event = "step", .fields = {{"step", std::int64_t{3}}}};
  for (int i = 0; i < 2; ++i) add_fields(record, i, *nvml.read(i));
  EXPECT_EQ(to_json_line(record),
            R"({"event":"step","step":3,"gpu_0_utilization":0.87,"gpu_0_memory_used_bytes":12884901888,)"
            R"("gpu_0_memory_total_bytes":85899345920,"gpu_0_temperature_c":65.0,"gpu_0_power_w":310.5,)"
            R"("gpu_1_utilization":0.09,"gpu_1_memory_used_bytes":1073741824,)"
            R"("gpu_1_memory_total_bytes":25769803776,"gpu_1_temperature_c":41.0})");
}

}  // namespace
}  // namespace trireme::telemetry
