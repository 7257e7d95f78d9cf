// `trireme find-batch` over processes: its output, its files, and its error for a rank that dies.

#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

std::vector<std::string> find_batch(const TemporaryFolder& folder, const std::vector<std::string>& more) {
  std::vector<std::string> command = {bin("trireme"),
                                      "find-batch",
                                      checkout("examples/quick.toml"),
                                      "-n",
                                      "2",
                                      "--set",
                                      "run.folder=" + folder.path().string()};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

TEST(FindBatch, ProcessesPrintOneJsonAndLeaveNothing) {
  const TemporaryFolder folder;
  const ChildResult result = run(find_batch(folder, {"--most", "128", "--noise", "500", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto found = nlohmann::json::parse(result.out);
  EXPECT_EQ(found.at("world_size"), 2);
  EXPECT_EQ(found.at("noise_scale"), 500);
  std::vector<int> batches;
  for (const auto& each : found.at("trials")) {
    batches.push_back(each.at("global_batch"));
    EXPECT_GT(each.at("samples_per_s"), 0);
    EXPECT_GT(each.at("memory_bytes"), 0);
  }
  EXPECT_THAT(batches, testing::ElementsAre(16, 32, 64, 128));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FindBatch, ServersExplainMissingNoiseScale) {
  const TemporaryFolder folder;
  const ChildResult result =
      run(find_batch(folder, {"--servers", "1", "--set", "parallel.mode=ps", "--most", "64"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("most efficient per second: not known"));
  EXPECT_THAT(result.out, HasSubstr("servers sum gradients"));
}

TEST(FindBatch, AsynchronousStagesRunToTheirEnd) {
  const TemporaryFolder folder;
  const ChildResult result =
      run(find_batch(folder, {"--most", "64", "--set", "train.accumulation=1", "--set", "parallel.pipeline=2",
                              "--set", "parallel.schedule=pipedream", "--set", "parallel.microbatches=1"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("fastest: "));
  EXPECT_THAT(result.out, HasSubstr("there is no gradient of all stages"));
}

TEST(FindBatch, DeadRankEndsSearchAndIsNamed) {
  const TemporaryFolder folder;
  ChildProcess search(find_batch(folder, {"--noise", "500", "--set", "model.hidden=[2048, 2048]"}));
  ASSERT_TRUE(search.wait_for_output("          16  ", 60)) << "the first trial";
  ::kill(search.children().at(1), SIGKILL);
  const ChildResult result = search.wait(60);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("rank 1"));
}

}  // namespace
}  // namespace trireme::test
