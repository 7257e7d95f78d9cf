// Data parallelism in real processes, over each backend that supports two ranks on one host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/child_process.h"

namespace trireme {
namespace {

/// The digests of the weights that the ranks printed.
std::vector<std::string> weights_in(const std::string& out) {
  static const std::regex line("weights ([0-9a-f]{16}), buckets [0-9]+, rebuilt 1");
  std::vector<std::string> digests;
  for (std::sregex_iterator it(out.begin(), out.end(), line), end; it != end; ++it)
    digests.push_back((*it)[1]);
  return digests;
}

class DataParallelProcesses : public testing::TestWithParam<const char*> {};

TEST_P(DataParallelProcesses, EndWithTheSameWeights) {
  const test::ChildResult result =
      test::run({test::bin("trireme"), "launch", "-n", "3", "--", test::bin("rank_ddp_steps"), GetParam()});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto digests = weights_in(result.out);
  ASSERT_EQ(digests.size(), 3u) << result.out;
  EXPECT_EQ(std::set<std::string>(digests.begin(), digests.end()).size(), 1u) << result.out;
}

INSTANTIATE_TEST_SUITE_P(Backends, DataParallelProcesses, testing::Values("gloo", "shm"));

/// The loss that `program` prints after `step`, on this number of ranks.
double loss_on_ranks(const std::string& program, int ranks, const std::string& step) {
  std::vector<std::string> command;
  if (ranks > 1) command = {test::bin("trireme"), "launch", "-n", std::to_string(ranks), "--"};
  command.push_back(program);
  const test::ChildResult result = test::run(command);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  std::smatch found;
  if (!std::regex_search(result.out, found, std::regex(step + ": loss ([0-9.]+)"))) {
    ADD_FAILURE() << result.out;
    return -ranks;
  }
  return std::stod(found[1]);
}

TEST(OwnLoop, GivesSameLossesOnTwoRanks) {
  const std::string program = test::bin("example_own_loop");
  EXPECT_NEAR(loss_on_ranks(program, 1, "step 50"), loss_on_ranks(program, 2, "step 50"), 2e-5);
}

// 1000 samples in batches of 96. The last 40 samples are split unevenly over three ranks.
TEST(OwnLoop, LibtorchDataLoaderGivesSameLosses) {
  const std::string program = test::bin("example_own_loop_data_loader");
  const double alone = loss_on_ranks(program, 1, "epoch 4");
  for (const int ranks : {2, 3}) EXPECT_NEAR(loss_on_ranks(program, ranks, "epoch 4"), alone, 2e-5) << ranks;
}

}  // namespace
}  // namespace trireme
