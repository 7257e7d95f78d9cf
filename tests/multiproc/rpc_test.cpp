// RPC between processes: gradients, models over workers, remote references while connections break, workers
// that are killed.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

test::ChildResult launch(int ranks, const std::string& program, const std::vector<std::string>& options) {
  std::vector<std::string> command = {test::bin("trireme"), "launch", "-n",
                                      text(ranks),          "--",     test::bin(program)};
  command.insert(command.end(), options.begin(), options.end());
  return test::run(command);
}

TEST(RemoteCalls, RandomGraphsHaveGradientsOfOneProcess) {
  const auto result = launch(3, "rank_rpc_graphs", {"--graphs", "200", "--seed", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("200 graphs over 3 workers: 0 different"), std::string::npos) << result.out;
}

TEST(RemoteCalls, ContextsOfSeveralThreadsContinueInParallel) {
  const auto result = launch(3, "rank_rpc_graphs", {"--graphs", "100", "--seed", "900", "--threads", "4"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("100 graphs over 3 workers: 0 different"), std::string::npos) << result.out;
}

TEST(RemoteCalls, ModelOverWorkersHasSerialBits) {
  const std::vector<std::pair<std::string, std::string>> runs = {
      {"resnet18", "1"}, {"resnet18", "2"}, {"resnet50", "2"}};
  for (const auto& [model, chunks] : runs) {
    const auto result = launch(3, "rank_rpc_pipe", {"--model", model, "--chunks", chunks, "--steps", "2"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("largest difference of all steps: 0\n"), std::string::npos) << result.out;
  }
}

TEST(RemoteCalls, MoreChunksDifferByOrderOnly) {
  for (const std::string checkpoint : {"never", "except_last", "always"}) {
    const auto result =
        launch(3, "rank_rpc_pipe", {"--model", "cnn", "--chunks", "4", "--checkpoint", checkpoint});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string last = "largest difference of all steps: ";
    const auto at = result.out.find(last);
    ASSERT_NE(at, std::string::npos) << result.out;
    EXPECT_LT(std::stod(result.out.substr(at + last.size())), 1e-6) << result.out;
  }
}

// A worker in the middle forwards gradients before it has begun its own part. The work that they start takes
// its time.
TEST(RemoteCalls, BackwardAwaitsAllGradientsOfLateWorkers) {
  const std::string slow_workers =
      "export LD_PRELOAD='" + test::bin("slow_backward_begin.so") +
      "' TRIREME_TEST_BEGIN_S=$(echo 0 0.4 0.1 | cut -d' ' -f$((RANK + 1))); exec \"$0\" \"$@\"";
  const auto result =
      test::run({test::bin("trireme"), "launch", "-n", "3", "--", "bash", "-c", slow_workers,
                 test::bin("rank_rpc_pipe"), "--model", "mlp", "--chunks", "4", "--steps", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string last = "largest difference of all steps: ";
  const auto at = result.out.find(last);
  ASSERT_NE(at, std::string::npos) << result.out;
  EXPECT_LT(std::stod(result.out.substr(at + last.size())), 1e-6) << result.out;
}

TEST(RemoteCalls, FaultsNeitherLeakNorFreeReferencesEarly) {
  for (const std::string way : {"shm", "tcp"}) {
    const auto result = launch(4, "rank_rpc_references", {"--references", "2000", "--way", way});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string found = "0 leaked, 0 not there or wrong, 0 calls run twice";
    EXPECT_NE(result.out.find(found), std::string::npos) << result.out;
    EXPECT_EQ(result.out.find(" 0 connections cut"), std::string::npos) << result.out;
    EXPECT_EQ(result.out.find(" 0 frames lost"), std::string::npos) << result.out;
  }
}

TEST(RemoteCalls, TheExampleLearnsOverTwoWorkers) {
  const auto result = launch(3, "example_remote_pipe", {});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string last = "step 200: loss ";
  const auto at = result.out.find(last);
  ASSERT_NE(at, std::string::npos) << result.out;
  EXPECT_LT(std::stod(result.out.substr(at + last.size())), 0.005) << result.out;
}

TEST(RemoteCalls, DistributedResNet50TrainsByMicroBatches) {
  const auto result = launch(3, "example_dist_resnet50", {"2", "2", "8", "32"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // The outputs of an untrained model are about 1, and so is their mean square.
  const std::string last = "step 2: loss ";
  const auto at = result.out.find(last);
  ASSERT_NE(at, std::string::npos) << result.out;
  const double loss = std::stod(result.out.substr(at + last.size()));
  EXPECT_GT(loss, 0);
  EXPECT_LT(loss, 10);
}

TEST(RemoteCalls, KilledAndFrozenWorkersAreNamed) {
  const auto result = test::run({test::bin("rank_rpc_faults")});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.out.find("NOT SO"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("ok: no context is left behind"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace trireme
