// Data parallelism in real processes, over each backend that two ranks of one host can use.
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

TEST(OwnLoop, GivesTheSameLossesAloneAndOnTwoRanks) {
  const std::string program = test::bin("example_own_loop");
  const test::ChildResult alone = test::run({program});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const test::ChildResult two = test::run({test::bin("trireme"), "launch", "-n", "2", "--", program});
  ASSERT_EQ(two.exit_code, 0) << two.out << two.err;
  static const std::regex loss("step 50: loss ([0-9.]+)");
  std::smatch first, second;
  ASSERT_TRUE(std::regex_search(alone.out, first, loss)) << alone.out;
  ASSERT_TRUE(std::regex_search(two.out, second, loss)) << two.out;
  EXPECT_NEAR(std::stod(first[1]), std::stod(second[1]), 2e-5);
}

}  // namespace
}  // namespace trireme
