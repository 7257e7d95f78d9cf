// Contexts that outlive main(), and several in one process, under a launcher and started by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/world.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

using test::ChildResult;
using testing::HasSubstr;
using testing::Not;

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

/// Parameters: mode, backend, and "launch" or "hand".
class Contexts : public testing::TestWithParam<std::tuple<const char*, const char*, const char*>> {
 protected:
  static void expect_good_end(const ChildResult& result, const std::string& sum, int times) {
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_EQ(count(result.out, sum), times) << result.out << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("warning"))) << result.err;
  }
};

TEST_P(Contexts, MeetAndEndInGoodOrder) {
  const auto [mode, backend, start] = GetParam();
  const int times = mode == std::string("again") || mode == std::string("beside") ? 3 : 1;
  const std::vector<std::string> program = {test::bin("rank_contexts"), mode, backend};
  if (start == std::string("launch")) {
    std::vector<std::string> command = {test::bin("trireme"), "launch", "-n", "2", "--"};
    command.insert(command.end(), program.begin(), program.end());
    return expect_good_end(test::run(command, {}, 60), ": sum 3", 2 * times);
  }
  auto ranks = test::start_all({.size = 2, .command = program});
  for (auto& rank : ranks) expect_good_end(rank->wait(60), ": sum 3", times);
}

/// All pairs of mode, backend and start occur.
std::vector<Contexts::ParamType> ways() {
  const std::vector<const char*> modes = {"static", "exit", "again", "beside", "late"};
  std::vector<Contexts::ParamType> result;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    result.emplace_back(modes[i], "shm", i % 2 == 0 ? "launch" : "hand");
    result.emplace_back(modes[i], "gloo", i % 2 == 0 ? "hand" : "launch");
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(AnyTwoOf, Contexts, testing::ValuesIn(ways()), [](const auto& test) {
  return text(std::get<0>(test.param), "_", std::get<1>(test.param), "_", std::get<2>(test.param));
});

}  // namespace
}  // namespace trireme
