// Error messages of the ranks of one host after a failure of the other host or of the network between them.

#include <gmock/gmock.h>
#include <signal.h>

#include "tests/support/two_hosts.h"
#include "tests/support/ucx.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::ContainsRegex;

constexpr double kTimeout_s = 3;
// Two timeouts, the launcher's grace period, and a margin for a loaded machine.
constexpr double kBound_s = 2 * kTimeout_s + 20;

/// Two ranks on each host that reduce in a loop, over each kind of transport between hosts.
class HostsFault : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!hosts_.unavailable_because().empty()) GTEST_SKIP() << hosts_.unavailable_because();
    if (GetParam() == "ucx" && !has_ucx()) GTEST_SKIP() << "built without UCX";
    use_ucx_over_network();
    launchers_ = hosts_.launch(2, {bin("rank_fault_loop"), text(kTimeout_s), "60", GetParam()});
    for (int rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(launcher(rank / 2).wait_for_output(text("[", rank, "] step 20"), 60));
    }
  }

  ChildProcess& launcher(int host) { return *launchers_.at(static_cast<std::size_t>(host)); }

  /// The output of the host's launcher, which must end with a communication error.
  std::string complaint(int host) {
    const ChildResult result = launcher(host).wait(kBound_s);
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit_code, 3) << result.err;
    return result.err;
  }

  TwoHosts hosts_;
  std::vector<std::unique_ptr<ChildProcess>> launchers_;
};

INSTANTIATE_TEST_SUITE_P(EveryWay, HostsFault, testing::Values("auto", "gloo", "ring", "direct", "ucx"),
                         [](const auto& test) { return test.param; });

TEST_P(HostsFault, BothHostsNameRankKilledOnOne) {
  ::kill(launcher(1).children().at(1), SIGKILL);
  EXPECT_THAT(complaint(0), ContainsRegex("\\[[01]\\] error: [^\n]*all_reduce[^\n]*rank 3"));
  EXPECT_THAT(complaint(1), ContainsRegex("rank 3 [^\n]*was killed by SIGKILL"));
}

/// Compression also waits for the other host in groups of its own.
TEST(HostsFaultOfTraining, CompressedHostsNameRankZero) {
  const TwoHosts hosts;
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  const auto launchers = hosts.launch(2, {bin("rank_ddp_steps"), "auto", "1000000", "-1", "top-k"});
  for (const std::size_t host : {0, 1})
    ASSERT_TRUE(launchers[host]->wait_for_output(text("rank ", 2 * host, " is under way"), 60));
  ::kill(launchers[0]->children().at(0), SIGKILL);
  const ChildResult first = launchers[0]->wait(60), second = launchers[1]->wait(60);
  EXPECT_THAT(first.err, ContainsRegex("rank 0 [^\n]*was killed by SIGKILL"));
  EXPECT_EQ(second.exit_code, 3) << second.err;
  EXPECT_THAT(second.err,
              ContainsRegex("backward of step [0-9]+: [^\n]* #[0-9]+[^\n]*rank 0 \\(pid [0-9]+\\)"));
}

TEST_P(HostsFault, CutCableFailsBothHostsByDeadline) {
  hosts_.cut_cable();
  EXPECT_THAT(complaint(0),
              ContainsRegex("\\[[01]\\] error: [^\n]*all_reduce[^\n]*rank [23] [^\n]*was last heard of"));
  EXPECT_THAT(
      complaint(1),
      ContainsRegex(
          "\\[[23]\\] error: [^\n]*all_reduce[^\n]*the store that the launcher of the first host serves"));
}

class HostsThatDiffer : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.unavailable_because().empty()) GTEST_SKIP() << hosts_.unavailable_because();
  }
  /// One rank on each host. The two hosts use different settings of the all-reduce or network between hosts.
  void expect_rejected(const std::string& one, const std::string& other, const std::string& regex) {
    // The shell on each host chooses the setting from its host name.
    const std::string differ = text("case $TRIREME_HOST_ID in *-0) way=", one, ";; *) way=", other,
                                    ";; esac; exec ", bin("rank_fault_loop"), " 20 1 $way");
    for (auto& launcher : hosts_.launch(1, {"sh", "-c", differ})) {
      const ChildResult result = launcher->wait(60);
      EXPECT_EQ(result.exit_code, 3) << result.out;
      EXPECT_THAT(result.err, ContainsRegex("ranks disagree about the world: rank [01] [^\n]*" + regex));
    }
  }
  TwoHosts hosts_;
};

TEST_F(HostsThatDiffer, DifferentAllReducesAreRejectedByName) {
  expect_rejected("ring", "direct", "comm.all_reduce[^\n]*(ring|direct)[^\n]*rank [01]");
}

TEST_F(HostsThatDiffer, InTheirNetworkAreRejectedByName) {
  if (!has_ucx()) GTEST_SKIP() << "built without UCX";
  expect_rejected("ucx", "auto", "comm.network[^\n]*(ucx|tcp)[^\n]*rank [01]");
}

}  // namespace
}  // namespace trireme::test
