// A rank whose disk is slow is named, with the stage of loading, by everything that tells of a run.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

TEST(SlowReads, OfOneRankAreNamedByProgressMetricsAndReport) {
  const TemporaryFolder folder;
  const std::string packed = (folder / "packed").string();
  const ChildResult pack = run({bin("trireme"), "data", "pack", "synthetic", packed});
  ASSERT_EQ(pack.exit_code, 0) << pack.err;
  const ChildResult result = run({bin("trireme"),
                                  "train",
                                  checkout("examples/quick.toml"),
                                  "-n",
                                  "2",
                                  "--set",
                                  "run.name=slow",
                                  "--set",
                                  "run.folder=" + folder.path().string(),
                                  "--set",
                                  "data.name=packed",
                                  "--set",
                                  "data.path=" + packed,
                                  "--set",
                                  "data.workers=1",
                                  "--set",
                                  "train.max_steps=20",
                                  "--set",
                                  "run.log_every_steps=1",
                                  "--set",
                                  "model.hidden=[8]"},
                                 {{"LD_PRELOAD", bin("slow_pread.so")},
                                  {"TRIREME_TEST_PREAD_S", "0.002"},
                                  {"TRIREME_TEST_PREAD_RANK", "1"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(ContainsRegex("data [0-9]+% \\(rank 1: [0-9]+%, read\\)"),
            HasSubstr("of the time for data on rank 1, which waited most, slowest stage there: read")));
  const auto summary = nlohmann::json::parse(read_file(folder / "slow" / "summary.json"));
  EXPECT_GT(summary.at("loading_wait_rank_1").get<double>(), summary.at("loading_wait_rank_0").get<double>());
  EXPECT_EQ(summary.at("loading_slowest_stage_rank_1"), "read");
  EXPECT_THAT(read_file(folder / "slow" / "report.html"), HasSubstr("slowest stage: read"));
}

}  // namespace
}  // namespace trireme::test
