// Elastic jobs over several hosts, which are network namespaces. A host is lost, leaves or joins. The run
// ends with the same bits as an undisturbed run.

#include <gmock/gmock.h>
#include <signal.h>

#include "tests/fault/runs_of_worlds.h"
#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "tests/support/two_hosts.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;
using testing::Not;

using Words = std::vector<std::string>;

/// 1024 steps on two hosts with two ranks each. Exact runs give the same bits on one host and on two.
class ElasticHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.unavailable_because().empty()) GTEST_SKIP() << hosts_.unavailable_because();
  }

  std::unique_ptr<ChildProcess> start(int host, const Words& options, const Words& settings) const {
    Words words = {"--nnodes", "1:2", "--elastic", "--join-wait", "30"};
    words.insert(words.end(), options.begin(), options.end());
    return hosts_.launch_on(host, 2, words, runs_.command("run", settings));
  }
  const TwoHosts hosts_;
  const TemporaryFolder folder_;
  const RunsOfWorlds runs_{folder_.path()};
};

TEST_F(ElasticHosts, NewHostReplacesLostHost) {
  const Words settings = {"parallel.zero=3", "checkpoint.in_memory_every_steps=1"};
  const auto first = start(0, {}, settings);
  auto second = start(1, {}, settings);
  ASSERT_TRUE(evaluates(*first, 100));
  second->send_signal(SIGKILL);  // its ranks end with the launcher
  second->wait(10);
  ASSERT_TRUE(evaluates(*first, 300));
  second = start(1, {}, settings);
  const ChildResult result = first->wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 1 has 2 rank(s)"));
  EXPECT_THAT(result.err, HasSubstr("elastic: host 2 has joined, with 2 rank(s)"));
  EXPECT_THAT(result.err, HasSubstr("elastic: world 2 has 4 rank(s)"));
  const std::string said = result.out + result.err;
  EXPECT_GE(step_of_world(said, 1), 100) << "copies are on the other host";
  EXPECT_EQ(second->wait(30).exit_code, 0);
  const TrainedRun found = read_run(folder_ / "run");
  EXPECT_EQ(found.world_size, 4);
  EXPECT_EQ(found.weights_xxh3,
            runs_.undisturbed({{4, step_of_world(said, 1)}, {2, step_of_world(said, 2)}, {4}},
                              {"parallel.zero=3"}));
}

TEST_F(ElasticHosts, WaitingLauncherCanBeStopped) {
  const auto second = start(1, {}, {});
  ASSERT_TRUE(second->wait_for_output("trying for 1m 00s", 30));
  second->send_signal(SIGINT);
  const ChildResult result = second->wait(20);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("told to stop before a launcher served the store of the job at "));
}

TEST_F(ElasticHosts, StoppedHostHandsItsStateOver) {
  const Words settings = {"parallel.zero=3"};
  const auto first = start(0, {}, settings), second = start(1, {}, settings);
  ASSERT_TRUE(evaluates(*first, 100));
  second->send_signal(SIGTERM);
  const ChildResult left = second->wait(60);
  EXPECT_EQ(left.exit_code, 143) << left.err;
  EXPECT_THAT(left.err, HasSubstr("this host leaves the job"));
  EXPECT_THAT(left.err, HasSubstr("stopped by SIGTERM; this host has no rank any more"));
  const ChildResult result = first->wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: host 1 leaves"));
  EXPECT_THAT(result.err, HasSubstr("elastic: world 1 has 2 rank(s)"));
  const int step = step_of_world(result.out + result.err, 1);
  EXPECT_GE(step, 100) << "without copies before";
  EXPECT_EQ(read_run(folder_ / "run").weights_xxh3, runs_.undisturbed({{4, step}, {2}}, settings));
}

TEST_F(ElasticHosts, RanksSaveBeforeTooFewAreLeft) {
  const auto first = start(0, {"--min-ranks", "4"}, {}), second = start(1, {}, {});
  ASSERT_TRUE(evaluates(*first, 100));
  second->send_signal(SIGTERM);
  const ChildResult left = second->wait(60), result = first->wait(60);
  EXPECT_EQ(left.exit_code, 143) << left.err;
  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_THAT(result.err, HasSubstr("too few ranks would be left (--min-ranks 4)"));
  EXPECT_EQ(read_run(folder_ / "run").status, "interrupted");
}

TEST_F(ElasticHosts, CutCableLeavesHostOfStore) {
  const auto first = start(0, {}, {}), second = start(1, {}, {});
  ASSERT_TRUE(evaluates(*first, 100));
  hosts_.cut_cable();
  const ChildResult left = second->wait(60), result = first->wait(120);
  EXPECT_EQ(left.exit_code, 3) << left.err;
  EXPECT_THAT(left.err, HasSubstr("does not answer"));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 1 has 2 rank(s)"));
  EXPECT_EQ(read_run(folder_ / "run").weights_xxh3,
            runs_.undisturbed({{4, step_of_world(result.out + result.err, 1)}, {2}}, {}));
}

TEST_F(ElasticHosts, ARankIsReplacedOnItsHost) {
  const auto first = start(0, {"--max-restarts", "1"}, {}), second = start(1, {}, {});
  ASSERT_TRUE(evaluates(*first, 100));
  ASSERT_EQ(::kill(second->children().at(0), SIGKILL), 0);
  const ChildResult result = first->wait(120), other = second->wait(30);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(other.exit_code, 0) << other.err;
  for (const ChildResult& each : {result, other})
    EXPECT_THAT(each.err, HasSubstr("elastic: world 1 has 4 rank(s): rank 2 is a new process"));
  EXPECT_THAT(other.err, HasSubstr("rank 2 (pid"));
  EXPECT_EQ(read_run(folder_ / "run").weights_xxh3, runs_.undisturbed({{4}}, {}));
}

/// The first rank is then on another host, and the folder still belongs to this job.
TEST_F(ElasticHosts, AnotherHostRestoresCheckpointOfJob) {
  const Words settings = {"parallel.zero=3", "checkpoint.every_steps=40"};
  const auto first = start(0, {}, settings), second = start(1, {"--spares", "1"}, settings);
  ASSERT_TRUE(evaluates(*first, 100));
  ASSERT_EQ(::kill(first->children().at(0), SIGKILL), 0);
  const ChildResult result = first->wait(120), other = second->wait(30);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: world 1 has 4 rank(s): rank 0 is a new process"));
  EXPECT_THAT(other.out, testing::ContainsRegex("\\[0\\] resuming [^\n]*: steps [0-9]+[1-9] to 1024"))
      << other.out;
  EXPECT_EQ(read_run(folder_ / "run").weights_xxh3, runs_.undisturbed({{4}}, {"parallel.zero=3"}));
}

/// Its configuration differs from that of the job, or its ranks do not even start.
TEST_F(ElasticHosts, NewHostThatCannotTakePartLeaves) {
  for (const auto& [setting, reason] : {std::pair("optimizer.lr=0.25", "ranks have different configurations"),
                                        std::pair("optimizer.rate=0.25", "unknown key 'optimizer.rate'")}) {
    SCOPED_TRACE(setting);
    const Words settings = {text("run.name=", std::string(setting, 13))};
    const auto first = start(0, {}, settings);
    auto second = start(1, {}, settings);
    ASSERT_TRUE(evaluates(*first, 100));
    second->send_signal(SIGKILL);
    second->wait(10);
    ASSERT_TRUE(evaluates(*first, 300));
    second = start(1, {}, {settings[0], setting});
    const ChildResult rejected = second->wait(60), result = first->wait(120);
    EXPECT_EQ(rejected.exit_code, 2) << rejected.err;
    EXPECT_THAT(rejected.err, HasSubstr(reason));
    EXPECT_THAT(rejected.err, HasSubstr("cannot take part in the job: this host leaves it"));
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr("elastic: host 2 leaves"));
    const std::string said = result.out + result.err;
    EXPECT_EQ(read_run(folder_ / std::string(setting, 13)).weights_xxh3,
              runs_.undisturbed({{4, step_of_world(said, 1)}, {2}}, {}));
  }
}

TEST_F(ElasticHosts, CustomLoopTakesInNewHost) {
  const Words options = {"--nnodes", "1:2", "--elastic", "--join-wait", "0"};
  const auto first = hosts_.launch_on(0, 2, options, {bin("rank_elastic_loop"), "grow"});
  ASSERT_TRUE(first->wait_for_output("generation 0 begins", 60));
  const auto second = hosts_.launch_on(1, 1, options, {bin("rank_elastic_loop"), "grow"});
  const ChildResult result = first->wait(60), joined = second->wait(60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(joined.exit_code, 0) << joined.err;
  EXPECT_THAT(result.out, HasSubstr("generation 1: rank 0 of 3, world 2 of this process, sum 6"));
  EXPECT_THAT(joined.out, HasSubstr("generation 1: rank 2 of 3, world 1 of this process, sum 6"));
}

TEST_F(ElasticHosts, CtrlCOnOneHostStopsJob) {
  const auto first = start(0, {"--max-restarts", "3"}, {}), second = start(1, {}, {});
  ASSERT_TRUE(evaluates(*first, 100));
  second->send_signal(SIGINT);
  const ChildResult left = second->wait(60), result = first->wait(60);
  EXPECT_EQ(left.exit_code, 130) << left.err;
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("elastic: world 1")));
  EXPECT_EQ(read_run(folder_ / "run").status, "interrupted");
}

}  // namespace
}  // namespace trireme::test
