// Elastic jobs whose leader is elected through etcd. The leading host is lost, leaves or is stopped, and the
// run continues on the other hosts.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/fault/runs_of_worlds.h"
#include "tests/support/child_process.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/paths.h"
#include "tests/support/switched_hosts.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/text.h"
#include "trireme/etcd/internal/client.h"
#include "trireme/etcd/store_address.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;
using testing::Not;

using Words = std::vector<std::string>;

/// Several launchers on one machine. Each stands for a host of the job with two ranks.
class ElasticLeaders : public testing::Test {
 protected:
  void SetUp() override {
    TRIREME_NEEDS_ETCD();
    etcd_ = std::make_unique<EtcdCluster>(1);
    std::ofstream(folder_ / "secret") << "the secret of these hosts\n";
    std::filesystem::permissions(folder_ / "secret", std::filesystem::perms(0600));
  }

  std::unique_ptr<ChildProcess> start(int host, int most_hosts, const Words& settings) const {
    Words words = {bin("trireme"),
                   "launch",
                   "-n",
                   "2",
                   "--nnodes",
                   text(least_hosts_, ":", most_hosts),
                   "--elastic",
                   "--rendezvous",
                   etcd_->address(),
                   "--join-wait",
                   join_wait_,
                   "--secret-file",
                   (folder_ / secret_).string()};
    words.insert(words.end(), options_.begin(), options_.end());
    words.push_back("--");
    const Words command = runs_.command("run", settings);
    words.insert(words.end(), command.begin(), command.end());
    return std::make_unique<ChildProcess>(
        words, std::map<std::string, std::string>{{"TRIREME_HOST_ID", text("host", host)},
                                                  {"TMPDIR", temporary_of(host).string()}});
  }
  std::filesystem::path temporary_of(int host) const {
    const std::filesystem::path folder = folder_ / text("tmp", host);
    std::filesystem::create_directories(folder);
    return folder;
  }
  /// The first host leads. The others start after it.
  void start_hosts(int num_hosts, const Words& settings) {
    for (int host = 0; host < num_hosts; ++host) {
      launchers_.push_back(start(host, std::max(num_hosts, 2), settings));
      ASSERT_TRUE(launchers_[0]->wait_for_output(text("elastic: host ", host, " has joined"), 30))
          << launchers_[0]->wait(1).err;
    }
  }
  const TemporaryFolder folder_;
  const RunsOfWorlds runs_{folder_.path()};
  std::string join_wait_ = "30", secret_ = "secret";
  int least_hosts_ = 1;
  Words options_;
  std::unique_ptr<EtcdCluster> etcd_;
  std::vector<std::unique_ptr<ChildProcess>> launchers_;
};

TEST_F(ElasticLeaders, LossOfLeaderDoesNotEndJob) {
  ASSERT_NO_FATAL_FAILURE(
      start_hosts(3, {"parallel.zero=3", "train.epochs=8", "checkpoint.in_memory_every_steps=1"}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  launchers_[0]->send_signal(SIGKILL);  // its ranks end with the launcher
  launchers_[0]->wait(10);
  const ChildResult second = launchers_[1]->wait(120), third = launchers_[2]->wait(120);
  EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_EQ(third.exit_code, 0) << third.out << third.err;
  const std::string said = second.err + third.err;
  EXPECT_THAT(said, HasSubstr("leads the job now"));
  EXPECT_THAT(said, HasSubstr("elastic: world 1 has 4 rank(s)"));
  const int step = step_of_world(second.out + third.out + said, 1);
  EXPECT_GE(step, 50);
  EXPECT_EQ(read_run(folder_ / "run").weights_xxh3,
            runs_.undisturbed({{6, step}, {4}}, {"parallel.zero=3", "train.epochs=8"}));
}

TEST_F(ElasticLeaders, LeaderThatLeavesHandsJobOver) {
  ASSERT_NO_FATAL_FAILURE(start_hosts(2, {"parallel.zero=3"}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  launchers_[0]->send_signal(SIGTERM);
  const ChildResult left = launchers_[0]->wait(60);
  EXPECT_EQ(left.exit_code, 143) << left.err;
  EXPECT_THAT(left.err, HasSubstr("this host leaves the job"));
  const ChildResult second = launchers_[1]->wait(120);
  ASSERT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_THAT(second.err, HasSubstr("elastic: this host, 1, leads the job now"));
  EXPECT_THAT(second.err, HasSubstr("elastic: world 1 has 2 rank(s)"));
  const int step = step_of_world(second.out + second.err, 1);
  EXPECT_GE(step, 50) << "handed over, without copies before";
  EXPECT_EQ(read_run(folder_ / "run").weights_xxh3, runs_.undisturbed({{4, step}, {2}}, {"parallel.zero=3"}));
}

/// The two hosts hold the copies of each other's state.
TEST_F(ElasticLeaders, NeighborsThatLeaveTogetherKeepState) {
  ASSERT_NO_FATAL_FAILURE(start_hosts(3, {"parallel.zero=3", "train.epochs=8"}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  launchers_[1]->send_signal(SIGTERM);
  launchers_[2]->send_signal(SIGTERM);
  const ChildResult second = launchers_[1]->wait(60), third = launchers_[2]->wait(60);
  EXPECT_EQ(second.exit_code, 143) << second.err;
  EXPECT_EQ(third.exit_code, 143) << third.err;
  const ChildResult first = launchers_[0]->wait(120);
  ASSERT_EQ(first.exit_code, 0) << first.out << first.err;
  const std::string said = first.out + first.err;
  std::vector<RunsOfWorlds::World> worlds = {{6, step_of_world(said, 1)}};
  EXPECT_GE(worlds[0].end, 50) << "handed over, without copies before";
  // The second host may have left after the ranks were asked to form a world without the first.
  const bool one_by_one = said.find("elastic: world 1 has 4 rank(s)") != std::string::npos;
  if (one_by_one) worlds.push_back({4, step_of_world(said, 2)});
  worlds.push_back({2});
  EXPECT_THAT(said, HasSubstr(text("elastic: world ", one_by_one ? 2 : 1, " has 2 rank(s)")));
  EXPECT_EQ(read_run(folder_ / "run").weights_xxh3,
            runs_.undisturbed(worlds, {"parallel.zero=3", "train.epochs=8"}));
}

/// Both hosts are terminated, as at the end of a reservation.
TEST_F(ElasticLeaders, HostsThatComeBackAwaitEachOther) {
  least_hosts_ = 2;
  join_wait_ = "0";
  ASSERT_NO_FATAL_FAILURE(start_hosts(2, {"checkpoint.every_steps=50"}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  for (const auto& launcher : launchers_) launcher->send_signal(SIGTERM);
  for (const auto& launcher : launchers_) EXPECT_EQ(launcher->wait(60).exit_code, 143);
  launchers_.clear();
  const auto first = start(0, 2, {"checkpoint.every_steps=50"});
  ASSERT_TRUE(first->wait_for_output("elastic: waiting for hosts: 1 of 2", 60)) << first->wait(1).err;
  const auto second = start(1, 2, {"checkpoint.every_steps=50"});
  const ChildResult one = first->wait(120), other = second->wait(120);
  EXPECT_EQ(one.exit_code, 0) << one.out << one.err;
  EXPECT_EQ(other.exit_code, 0) << other.out << other.err;
  EXPECT_EQ(read_run(folder_ / "run").world_size, 4);
}

TEST_F(ElasticLeaders, AnotherSecretIsAnotherJob) {
  ASSERT_NO_FATAL_FAILURE(start_hosts(2, {"train.epochs=8"}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  std::ofstream(folder_ / "other") << "the secret of other hosts\n";
  std::filesystem::permissions(folder_ / "other", std::filesystem::perms(0600));
  secret_ = "other";
  const ChildResult other = start(2, 2, {})->wait(60);
  EXPECT_EQ(other.exit_code, 2) << other.err;
  EXPECT_THAT(other.err, HasSubstr("a job with another secret uses etcd://"));
  for (const auto& launcher : launchers_) {
    const ChildResult result = launcher->wait(120);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

/// Both hosts are terminated, as at the end of a reservation.
TEST_F(ElasticLeaders, HostsThatAllLeaveSaveTheRun) {
  ASSERT_NO_FATAL_FAILURE(start_hosts(2, {}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  for (const auto& launcher : launchers_) launcher->send_signal(SIGTERM);
  for (const auto& launcher : launchers_) {
    const ChildResult result = launcher->wait(60);
    EXPECT_EQ(result.exit_code, 143) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("killing all ranks")));
  }
  EXPECT_EQ(read_run(folder_ / "run").status, "interrupted");
}

TEST_F(ElasticLeaders, LeaderThatIsNeededSavesTheRun) {
  options_ = {"--min-ranks", "4"};
  ASSERT_NO_FATAL_FAILURE(start_hosts(2, {}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  launchers_[0]->send_signal(SIGTERM);
  const ChildResult first = launchers_[0]->wait(60), second = launchers_[1]->wait(60);
  EXPECT_EQ(first.exit_code, 143) << first.err;
  EXPECT_EQ(second.exit_code, 143) << second.err;
  EXPECT_THAT(first.err, HasSubstr("too few ranks would be left (--min-ranks 4)"));
  EXPECT_EQ(read_run(folder_ / "run").status, "interrupted");
}

/// The stopped launcher has not seen that another host leads.
TEST_F(ElasticLeaders, LeaderThatWakesUpFollowsItsSuccessor) {
  ASSERT_NO_FATAL_FAILURE(start_hosts(2, {"parallel.zero=3", "train.epochs=20"}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  launchers_[0]->send_signal(SIGSTOP);  // only the launcher stops; its ranks continue
  EXPECT_TRUE(launchers_[1]->wait_for_output("elastic: this host, 1, leads the job now", 60));
  EXPECT_TRUE(launchers_[1]->wait_for_output("elastic: world 1 has 2 rank(s)", 60));
  launchers_[0]->send_signal(SIGCONT);
  EXPECT_TRUE(launchers_[1]->wait_for_output("elastic: world 2 has 4 rank(s)", 60));
  const ChildResult first = launchers_[0]->wait(120), second = launchers_[1]->wait(120);
  EXPECT_EQ(first.exit_code, 0) << first.out << first.err;
  EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_THAT(first.err, HasSubstr("elastic: another host leads the job now"));
  EXPECT_EQ(read_run(folder_ / "run").world_size, 4);
}

TEST_F(ElasticLeaders, WakingLeaderLearnsTheJobHasEnded) {
  ASSERT_NO_FATAL_FAILURE(start_hosts(2, {}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  launchers_[0]->send_signal(SIGSTOP);
  const ChildResult second = launchers_[1]->wait(120);
  EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_THAT(second.err, HasSubstr("elastic: world 1 has 2 rank(s)"));
  launchers_[0]->send_signal(SIGCONT);
  const ChildResult first = launchers_[0]->wait(120);
  EXPECT_EQ(first.exit_code, 0) << first.out << first.err;
}

TEST_F(ElasticLeaders, JobContinuesWithoutEtcd) {
  ASSERT_NO_FATAL_FAILURE(start_hosts(2, {"train.epochs=8"}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  etcd_->signal(0, SIGSTOP);
  const ChildResult first = launchers_[0]->wait(120), second = launchers_[1]->wait(120);
  EXPECT_EQ(first.exit_code, 0) << first.out << first.err;
  EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_THAT(first.err, Not(HasSubstr("elastic: world 1")));
  EXPECT_THAT(first.err, HasSubstr("Give the next job another prefix"));
}

TEST_F(ElasticLeaders, LauncherWaitsForEtcd) {
  join_wait_ = "0";
  etcd_->signal(0, SIGSTOP);
  const auto launcher = start(0, 2, {"train.epochs=1"});
  EXPECT_TRUE(launcher->wait_for_output("trying for 1m 00s", 30));
  launcher->send_signal(SIGUSR1);  // this signal is no request to stop
  etcd_->signal(0, SIGCONT);
  const ChildResult result = launcher->wait(60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(ElasticLeaders, LauncherWaitingForEtcdCanBeStopped) {
  etcd_->signal(0, SIGSTOP);
  const auto launcher = start(0, 2, {});
  EXPECT_TRUE(launcher->wait_for_output("trying for 1m 00s", 30));
  launcher->send_signal(SIGINT);
  const ChildResult result = launcher->wait(20);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("told to stop before a leader of the job was found"));
}

/// The address file is partial, as after a write to a full disk. The launcher rewrites it when the leader of
/// the job changes.
TEST_F(ElasticLeaders, PartialStoreAddressIsReadAgain) {
  ASSERT_NO_FATAL_FAILURE(start_hosts(2, {"checkpoint.in_memory_every_steps=1"}));
  ASSERT_TRUE(evaluates(*launchers_[0], 50));
  int damaged = 0;
  for (const auto& folder : std::filesystem::directory_iterator(temporary_of(1))) {
    if (!std::filesystem::exists(folder.path() / "store")) continue;
    std::ofstream(folder.path() / "store") << "127.0.\n";
    ++damaged;
  }
  ASSERT_EQ(damaged, 1);
  launchers_[0]->send_signal(SIGKILL);
  const ChildResult second = launchers_[1]->wait(120);
  EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_THAT(second.err, HasSubstr("elastic: world 1 has 2 rank(s)"));
}

TEST_F(ElasticLeaders, DamagedRecordEndsLauncherWithReason) {
  join_wait_ = "0";
  const etcd::StoreAddress store = etcd::StoreAddress::parse(etcd_->address());
  etcd::Client(store.members)
      .commit({.when = {},
               .writes = {{.key = store.prefix + "/job/files/record", .value = "no record"}},
               .removals = {}});
  const ChildResult result = start(0, 2, {})->wait(120);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("this launcher could not lead it for 1m 00s: "));
}

TEST_F(ElasticLeaders, EndOfJobLeavesItsEndAlone) {
  join_wait_ = "0";
  for (int start = 0; start < 2; ++start) {
    launchers_.clear();
    ASSERT_NO_FATAL_FAILURE(start_hosts(1, {"train.epochs=1", text("run.name=run", start)}));
    const ChildResult result = launchers_[0]->wait(60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("leads the job now"))) << "there is no job to continue";
  }
  const etcd::StoreAddress store = etcd::StoreAddress::parse(etcd_->address());
  const etcd::Listing left = etcd::Client(store.members).list("test", etcd::end_of("test"), 10);
  ASSERT_EQ(left.pairs.size(), 1U);
  EXPECT_EQ(left.pairs[0].key, "test/job/end");
  EXPECT_NE(left.pairs[0].lease, 0) << "it stays for ever";
}

/// etcd runs on the third of three hosts.
TEST(ElasticLeader, CutCableOfLeaderLeavesOneJob) {
  TRIREME_NEEDS_ETCD();
  SwitchedHosts hosts(3, 0);
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  const EtcdCluster etcd(1, hosts.address(2), hosts.entrance(2));
  const TemporaryFolder folder;
  const RunsOfWorlds runs(folder.path());
  const auto start = [&](int host) {
    Words words = {bin("trireme"),
                   "launch",
                   "-n",
                   "2",
                   "--nnodes",
                   "1:2",
                   "--elastic",
                   "--rendezvous",
                   etcd.address(),
                   "--secret-file",
                   hosts.secret_file(),
                   "--join-wait",
                   "30",
                   "--"};
    const Words command = runs.command("run", {"train.epochs=8"});
    words.insert(words.end(), command.begin(), command.end());
    return hosts.start_on(host, words);
  };
  const auto first = start(0);
  ASSERT_TRUE(first->wait_for_output("elastic: host 0 has joined", 30));
  const auto second = start(1);
  ASSERT_TRUE(evaluates(*first, 50));
  hosts.cut_cable(0);
  const ChildResult result = second->wait(150), left = first->wait(150);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("elastic: this host, 1, leads the job now"));
  EXPECT_EQ(left.exit_code, 3) << left.err;
  EXPECT_THAT(left.err, HasSubstr("no other launcher leads in etcd://"));
  EXPECT_EQ(read_run(folder / "run").weights_xxh3,
            runs.undisturbed({{4, step_of_world(result.out + result.err, 1)}, {2}}, {"train.epochs=8"}));
}

}  // namespace
}  // namespace trireme::test
