// A rank with a slow disk is named, with the data-loading stage, in every report of the run.

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

TEST(SlowReads, ProgressMetricsAndReportNameSlowRank) {
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

TEST(SlowReads, ReadsBatchInParallelAfterSlowRead) {
  const TemporaryFolder folder;
  const std::string packed = (folder / "packed").string(), count = (folder / "count").string();
  const ChildResult pack = run({bin("trireme"), "data", "pack", "synthetic", packed});
  ASSERT_EQ(pack.exit_code, 0) << pack.err;
  std::vector<std::string> train = {bin("trireme"), "train", checkout("examples/quick.toml"), "-n", "2"};
  for (const std::string key :
       {"data.name=packed", "data.workers=1", "train.global_batch=128", "train.max_steps=12"})
    train.insert(train.end(), {"--set", key});
  train.insert(train.end(),
               {"--set", "data.path=" + packed, "--set", "run.folder=" + folder.path().string()});
  const ChildResult result = run(train, {{"LD_PRELOAD", bin("slow_pread.so")},
                                         {"TRIREME_TEST_PREAD_S", "0.002"},
                                         {"TRIREME_TEST_PREAD_RANK", "1"},
                                         {"TRIREME_TEST_PREAD_COUNT", count}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const int waited = std::stoi(read_file(count));
  EXPECT_GT(waited, 12) << "the first of each batch";
  EXPECT_LT(waited, 12 * 32) << "64 samples of each step are this rank's";
}

}  // namespace
}  // namespace trireme::test
