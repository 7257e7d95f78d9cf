// Processes of a parameter server that are killed, stopped, asked to leave or rejected.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/certificates.h"
#include "tests/support/child_process.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/clock.h"
#include "trireme/base/files.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

/// The folders are in memory, because the guarantees are about processes. On a loaded machine the disk may
/// take longer for a change of the map than the 30 s that a worker waits.
ChildResult chaos(const std::vector<std::string>& options) {
  std::vector<std::string> words = {bin("trireme"), "bench", "ps-chaos", "--json"};
  words.insert(words.end(), options.begin(), options.end());
  return run(words, {{"TMPDIR", "/dev/shm"}});
}

TEST(ParameterServer, LosesAndDoublesNothingUnderEachFault) {
  const ChildResult result = chaos({});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["lost"], 0);
  EXPECT_EQ(report["doubled"], 0);
  EXPECT_EQ(report["failed"], 0);
  for (const char* kind : {"kill", "moving", "checkpoint", "first of two", "second of two", "worker",
                           "behind links", "freeze", "coordinator"})
    EXPECT_EQ(report["kinds"][kind]["count"], 1) << kind;
  EXPECT_EQ(report["kills"], 6);
  EXPECT_GT(report["pushes"], 1000);
}

TEST(ParameterServer, LosesAndDoublesNothingInLongChains) {
  const ChildResult result = chaos({"--servers", "4", "--replicas", "3", "--kinds", "kill,moving,two"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["lost"], 0);
  EXPECT_EQ(report["doubled"], 0);
  EXPECT_EQ(report["kills"], 4);
}

/// The short form of a half-hour run. It is too short to detect growing memory, which
/// tests/unit/cli/growth_test.cpp covers.
TEST(ParameterServer, LosesAndDoublesNothingUnderRandomFaults) {
  for (const char* kinds : {"kill,worker,checkpoint", "kill,moving,worker,coordinator"}) {
    const ChildResult result = chaos({"--minutes", "0.15", "--kinds", kinds});
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    const auto report = nlohmann::json::parse(result.out);
    EXPECT_EQ(report["lost"], 0);
    EXPECT_EQ(report["doubled"], 0);
    EXPECT_EQ(report["failed"], 0);
    EXPECT_EQ(report["grown"], 0);
    EXPECT_GE(report["seeds"][0]["faults"].size(), 1U);
    EXPECT_GT(report["pushes"], 1000);
    EXPECT_GT(report["processes"], 7);  // the client, the coordinator, servers and bounded workers
  }
}

TEST(ParameterServer, KnowsAllKindsOfFaults) {
  const ChildResult result = run({bin("trireme"), "bench", "ps-chaos", "--kinds", "kill,frieze"});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_THAT(result.err, HasSubstr("--kinds has 'frieze' (did you mean 'freeze'?)"));
}

class ServingProcesses : public testing::Test {
 protected:
  std::unique_ptr<ChildProcess> coordinator(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {bin("trireme"),    "serve-coordinator", "--folder",
                                      folder_ / "store", "--partitions",      "16",
                                      "--address-file",  folder_ / "address"};
    words.insert(words.end(), more.begin(), more.end());
    auto child = std::make_unique<ChildProcess>(words);
    EXPECT_TRUE(child->wait_for_output("coordinator serves at ", 20));
    address_ = read_file(folder_ / "address");
    address_.pop_back();
    return child;
  }
  std::unique_ptr<ChildProcess> server(const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {bin("trireme"), "serve-params", "--coordinator",
                                      address_,       "--name",       name};
    words.insert(words.end(), more.begin(), more.end());
    auto child = std::make_unique<ChildProcess>(words);
    EXPECT_TRUE(child->wait_for_output("server serves at ", 20));
    return child;
  }

  TemporaryFolder folder_;
  std::string address_;
};

TEST_F(ServingProcesses, LeavingServerGivesItsPartitionsAway) {
  const auto store = coordinator({"--servers", "2"});
  const auto stays = server("stays"), goes = server("goes");
  goes->send_signal(SIGTERM);
  const ChildResult gone = goes->wait(30);
  EXPECT_EQ(gone.exit_code, 0) << gone.err;
  EXPECT_THAT(gone.err, HasSubstr("server goes gives its partitions away"));
  store->send_signal(SIGTERM);
  EXPECT_EQ(store->wait(20).exit_code, 0);
}

TEST_F(ServingProcesses, ServerWithoutCoordinatorEndsOnRequest) {
  address_ = "tcp:127.0.0.1:1";
  const auto waits = server("waits");
  waits->send_signal(SIGTERM);
  EXPECT_EQ(waits->wait(20).exit_code, 0);
}

TEST_F(ServingProcesses, SecondCoordinatorCannotTakeAddressOfFirst) {
  const auto store = coordinator();
  const ChildResult second =
      run({bin("trireme"), "serve-coordinator", "--folder", folder_ / "other", "--listen", address_});
  EXPECT_EQ(second.exit_code, 3) << second.err;
  EXPECT_THAT(second.err, HasSubstr(address_.substr(4)));
}

TEST_F(ServingProcesses, ADamagedFolderIsADataError) {
  std::filesystem::create_directories(folder_ / "bad");
  std::ofstream(folder_ / "bad/map.snapshot") << "this is no snapshot";
  const ChildResult result = run({bin("trireme"), "serve-coordinator", "--folder", folder_ / "bad"});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the coordinator's map.snapshot of 19 bytes is damaged"));
}

TEST_F(ServingProcesses, RejectsReachableAddressWithoutProof) {
  const ChildResult result =
      run({bin("trireme"), "serve-coordinator", "--folder", folder_ / "store", "--listen", "tcp:0.0.0.0:0"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  const std::string secret = folder_ / "secret";
  std::ofstream(secret) << "a secret that is long enough for anybody";
  ::chmod(secret.c_str(), 0600);
  ChildProcess proved({bin("trireme"), "serve-coordinator", "--folder", folder_ / "store", "--listen",
                       "tcp:0.0.0.0:0", "--secret-file", secret});
  EXPECT_TRUE(proved.wait_for_output("coordinator serves at tcp:0.0.0.0:", 20));
}

TEST_F(ServingProcesses, StatusListsPartitionsAndSilentServers) {
  const auto store = coordinator({"--servers", "2", "--lease", "60"});  // a stopped server is not down
  const auto one = server("one"), other = server("other");
  const auto status = [&] {
    return run({bin("trireme"), "ps", "status", address_, "--timeout", "60", "--json"});
  };
  nlohmann::json seen = {{"unplaced", 16}};
  for (int i = 0; i < 600 && seen["unplaced"] > 0; ++i) {  // until partitions are placed
    const ChildResult result = status();
    ASSERT_EQ(result.exit_code, 0) << result.err;
    seen = nlohmann::json::parse(result.out);
  }
  ASSERT_EQ(seen["servers"].size(), 2U);
  int num_primary = 0, num_backup = 0;
  for (const auto& row : seen["servers"]) {
    EXPECT_EQ(row["state"], "up");
    EXPECT_EQ(row["status"]["requests_refused"], nlohmann::json::object());
    num_primary += row["primary"].get<int>();
    num_backup += row["backup"].get<int>();
  }
  EXPECT_EQ(num_primary, 16);
  EXPECT_EQ(num_backup, 16);
  one->send_signal(SIGSTOP);
  const ChildResult text = run({bin("trireme"), "ps", "status", address_, "--timeout", "1"});
  one->send_signal(SIGCONT);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("16 partitions of 2 replicas, 2 servers"));
  EXPECT_THAT(text.out, testing::ContainsRegex("version +lag +held +rows +waiting +pushes +pulls +refused"));
  EXPECT_THAT(text.out, HasSubstr("no status from one at tcp:127.0.0.1:"));
}

/// The coordinator, the servers and the status command get only the address of etcd.
TEST_F(ServingProcesses, FindEachOtherThroughDegradedEtcd) {
  TRIREME_NEEDS_ETCD();
  EtcdCluster etcd(3);
  address_ = etcd.address("jobs/found");
  ChildProcess candidate({bin("trireme"), "serve-coordinator", "--coordinator", address_, "--servers", "2",
                          "--partitions", "16"});
  ASSERT_TRUE(candidate.wait_for_output("coordinator serves at ", 20));
  const auto one = server("one"), other = server("other");
  const auto comes_to = [&](const std::function<bool(const nlohmann::json&)>& condition) {
    const Deadline deadline = Deadline::after_s(60);
    while (!deadline.expired()) {
      const ChildResult result = run({bin("trireme"), "ps", "status", address_, "--json"});
      if (result.exit_code == 0 && condition(nlohmann::json::parse(result.out))) return true;
    }
    return false;
  };
  EXPECT_TRUE(
      comes_to([](const auto& seen) { return seen["servers"].size() == 2 && seen["unplaced"] == 0; }));
  etcd.kill(0);
  const auto third = server("third");
  EXPECT_TRUE(comes_to([](const auto& seen) {
    const auto& rows = seen["servers"];
    return rows.size() == 3 && rows[2]["primary"] > 0 && seen["not_whole"]["count"] == 0;
  })) << "what is new is written to those that are left";
}

/// Servers that no launcher started, with each method of authentication that they can require.
TEST_F(ServingProcesses, TrainingUsesServersThatAlreadyRun) {
  const auto expect_trained = [&](const std::map<std::string, std::string>& environment) {
    std::vector<std::string> words = {bin("trireme"), "train", checkout("examples/quick.toml"), "-n", "2"};
    for (const std::string& setting :
         {"run.folder=" + (folder_ / "runs").string(), std::string("parallel.mode=ps"),
          "ps.coordinator=" + address_, std::string("train.clip_norm=0"), std::string("train.max_steps=20"),
          std::string("comm.timeout_s=20")})
      words.insert(words.end(), {"--set", setting});
    const ChildResult result = run(words, environment);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::filesystem::remove_all(folder_ / "store");
  };
  {
    const auto store = coordinator(), one = server("one");
    expect_trained({});
  }
  {
    const std::string secret = folder_ / "secret";
    std::ofstream(secret) << "a secret that is long enough for anybody";
    ::chmod(secret.c_str(), 0600);
    const auto store = coordinator({"--secret-file", secret, "--encrypt"}),
               one = server("one", {"--secret-file", secret, "--encrypt"});
    expect_trained({{"TRIREME_PS_SECRET_FILE", secret}, {"TRIREME_ENCRYPT", "1"}});
  }
  Authority authority("ours", folder_.path());
  const auto options = [&](const std::string& role) -> std::vector<std::string> {
    const wire::TlsFiles files = authority.issue(role, "DNS:" + role + ".0");
    return {"--tls-authority", files.authority, "--tls-certificate",
            files.certificate, "--tls-key",     files.key};
  };
  const auto store = coordinator(options("coordinator")), one = server("one", options("server"));
  const wire::TlsFiles worker = authority.issue("worker", "DNS:worker.all");
  expect_trained({{"TRIREME_PS_TLS_AUTHORITY", worker.authority},
                  {"TRIREME_PS_TLS_CERTIFICATE", worker.certificate},
                  {"TRIREME_PS_TLS_KEY", worker.key}});
}

/// A rank gets only the key of its worker, which gives access to nothing else.
TEST_F(ServingProcesses, SecurityLauncherGivesRanksOnlyWorkerKeys) {
  const std::string status = bin("trireme") + " ps status $TRIREME_PS_COORDINATOR";
  const std::string script =
      "echo \"rank $RANK has ${TRIREME_PS_SECRET%:*} of $TRIREME_PS_SECRET_FILE.\"\n" + status +
      " | grep -q partitions && echo rank is let in\n" + "env -u TRIREME_PS_SECRET " + status +
      " && echo the job has the secret of the servers\n" + "timeout 5 " + bin("trireme") +
      " serve-params --coordinator $TRIREME_PS_COORDINATOR && echo rank serves\nexit 0";
  const ChildResult own =
      run({bin("trireme"), "launch", "-n", "2", "--servers", "1", "--", "sh", "-c", script});
  EXPECT_EQ(own.exit_code, 0) << own.err;
  for (const std::string rank : {"0", "1"})
    EXPECT_THAT(own.out, HasSubstr("rank " + rank + " has trireme-key:worker." + rank + " of ."));
  EXPECT_THAT(own.out, HasSubstr("rank is let in"));
  EXPECT_THAT(own.out, testing::Not(HasSubstr("the job has the secret of the servers")));
  EXPECT_THAT(own.out, testing::Not(HasSubstr("rank serves")));
  EXPECT_THAT(own.err, HasSubstr("the key of worker.0 alone cannot listen for others"));
  // For servers that were started before, the launcher derives the keys.
  const std::string secret = folder_ / "secret";
  std::ofstream(secret) << "a secret that is long enough for anybody";
  ::chmod(secret.c_str(), 0600);
  const ChildResult others =
      run({bin("trireme"), "launch", "-n", "2", "--", "sh", "-c", script.substr(0, script.find('\n'))},
          {{"TRIREME_PS_SECRET_FILE", secret}});
  EXPECT_THAT(others.out, HasSubstr("rank 1 has trireme-key:worker.1 of ."));
}

/// An observer key can read the status and can write nothing, even if it leaks.
TEST_F(ServingProcesses, SecurityStatusReadersHaveTheirOwnKeys) {
  const std::string secret = folder_ / "secret", key = folder_ / "status.key";
  std::ofstream(secret) << "a secret that is long enough for anybody";
  ::chmod(secret.c_str(), 0600);
  const auto store = coordinator({"--secret-file", secret}), one = server("one", {"--secret-file", secret});
  const ChildResult made = run({bin("trireme"), "ps", "key", "observer.team", "--secret-file", secret});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, testing::StartsWith("trireme-key:observer.team:"));
  std::ofstream(key) << made.out;
  ::chmod(key.c_str(), 0600);
  const ChildResult status = run({bin("trireme"), "ps", "status", address_, "--secret-file", key});
  EXPECT_EQ(status.exit_code, 0) << status.err;
  EXPECT_THAT(status.out, HasSubstr("16 partitions"));
  const ChildResult serves =
      run({bin("trireme"), "serve-params", "--coordinator", address_, "--secret-file", key});
  EXPECT_EQ(serves.exit_code, 2) << serves.err;
  for (const std::string role : {"worker", "worker.", ".3"}) {
    const ChildResult none = run({bin("trireme"), "ps", "key", role, "--secret-file", secret});
    EXPECT_EQ(none.exit_code, 2) << none.out;
    EXPECT_THAT(none.err, HasSubstr("expected ROLE.NAME"));
  }
  const ChildResult second = run({bin("trireme"), "ps", "key", "worker.1", "--secret-file", key});
  EXPECT_EQ(second.exit_code, 2) << second.out;
}

TEST_F(ServingProcesses, UnansweredStatusIsCommError) {
  const ChildResult result = run({bin("trireme"), "ps", "status", "tcp:127.0.0.1:1"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no status from the coordinator at tcp:127.0.0.1:1"));
}

}  // namespace
}  // namespace trireme::test
