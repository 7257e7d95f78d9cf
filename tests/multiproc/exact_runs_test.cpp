// run.exact over ranks that are processes, with dropout. The bits do not depend on the rank that computes a
// micro-batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

struct Way {
  int replicas, pipeline, zero;
};

constexpr int kMicrobatches = 8, kSteps = 100;

/// Loss and norm of every step.
std::vector<std::string> bits_on(const Way& way) {
  const test::ChildResult result =
      test::run({test::bin("trireme"), "launch", "-n", std::to_string(way.replicas * way.pipeline), "--",
                 test::bin("rank_exact_steps"), std::to_string(kSteps), std::to_string(way.pipeline),
                 std::to_string(way.zero), std::to_string(kMicrobatches / way.replicas)},
                {}, 300);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> bits;
  for (const std::string& line : split(result.out, '\n')) {
    const auto begin = line.find("0x");
    if (begin != std::string::npos) bits.push_back(line.substr(begin));
  }
  return bits;
}

TEST(ExactRuns, HaveSameLossesForAnyMicrobatchShares) {
  const std::vector<std::string> one = bits_on({.replicas = 1, .pipeline = 1, .zero = 0});
  ASSERT_EQ(one.size(), std::size_t{kSteps});
  EXPECT_NE(one.front(), one.back());
  for (const Way& way : {Way{2, 1, 0}, Way{4, 1, 1}, Way{8, 1, 3}, Way{1, 2, 0}, Way{2, 2, 2}, Way{2, 4, 3}})
    EXPECT_EQ(bits_on(way), one) << way.replicas << " x " << way.pipeline << ", zero " << way.zero;
}

}  // namespace
}  // namespace trireme
