// Peers that connect to a coordinator or a server and send nothing, or only messages that do not make them
// members.

#include <gmock/gmock.h>

#include <csignal>
#include <future>

#include "tests/support/other_user.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/ps/hostile_peer.h"
#include "trireme/base/error.h"
#include "trireme/base/stop_request.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/client.h"
#include "trireme/ps/messages.h"
#include "trireme/ps/observer.h"
#include "trireme/ps/serve.h"

namespace trireme::ps {
namespace {

using testing::HasSubstr;

/// A coordinator and a server as their commands run them, each on a thread.
class SecurityOfServing : public testing::Test {
 protected:
  SecurityOfServing() {
    coordinator_ = serve([this](ServeOptions serve) {
      serve_coordinator({.num_partitions = 16, .num_replicas = 1}, std::move(serve));
    });
    server_ = serve([this](ServeOptions serve) {
      serve_params({.name = "own", .host = "here", .address = {}, .coordinator = coordinator_},
                   std::move(serve));
    });
    for (const auto deadline = Deadline::after_s(60);
         look_at_cluster({.coordinator = coordinator_}, {}).servers.empty() && !deadline.expired();)
      std::this_thread::sleep_for(Seconds(0.01));
  }
  ~SecurityOfServing() override {
    ::raise(SIGTERM);
    for (auto& thread : threads_) thread.join();
  }

  wire::Address serve(const std::function<void(ServeOptions)>& as) {
    auto listening = std::make_shared<std::promise<wire::Address>>();
    ServeOptions serve;
    serve.loop.listen = {"tcp:127.0.0.1:0"};
    serve.loop.folder = (folder_ / "coordinator").string();
    serve.loop.max_strangers = 32;
    serve.stop = &stop_;
    serve.leave_timeout_s = 0.1;
    serve.on_listening = [listening](const std::vector<wire::Address>& addresses) {
      listening->set_value(addresses[0]);
    };
    threads_.emplace_back([as, serve] {
      try {
        as(serve);
      } catch (const DataError&) {
        // The only server ends with its partitions.
      }
    });
    return listening->get_future().get();
  }

  TableId open_sums(Client& client) {
    TableSpec spec;
    spec.name = "sums";
    spec.num_elements = 4;
    return client.open_table(spec);
  }

  const test::TemporaryFolder folder_;
  const StopRequest stop_;
  std::vector<std::thread> threads_;
  wire::Address coordinator_, server_;
};

TEST_F(SecurityOfServing, SilentPeersDelayNoStatusOrWorker) {
  Client worker({.worker = 0, .host = "here", .coordinator = coordinator_});
  const TableId sums = open_sums(worker);
  std::vector<std::unique_ptr<HostilePeer>> silent;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 100; ++i) {
      const std::string role = i % 2 == 0 ? "worker" : "observer";
      silent.push_back(std::make_unique<HostilePeer>(i % 4 < 2 ? coordinator_ : server_,
                                                     wire::PeerIdentity{.role = role, .name = "9"}));
    }
    const ClusterReport report = look_at_cluster({.coordinator = coordinator_}, {});
    ASSERT_TRUE(report.cluster.has_value());
    EXPECT_TRUE(report.servers.at(1).status.has_value()) << report.servers.at(1).trouble;
    const std::vector<float> ones(4, 1);
    worker.push(sums, ones).get();
    Client comes({.worker = static_cast<WorkerId>(round + 1), .host = "here", .coordinator = coordinator_});
    std::vector<float> values(4);
    comes.pull(open_sums(comes), values).get();
    EXPECT_EQ(values, std::vector<float>(4, static_cast<float>(round + 1)));
  }
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(silent[i]->is_closed());
}

TEST_F(SecurityOfServing, StatusAloneMakesNobodyAMember) {
  std::vector<std::unique_ptr<HostilePeer>> askers;
  for (int i = 0; i < 40; ++i) {
    askers.push_back(
        std::make_unique<HostilePeer>(coordinator_, wire::PeerIdentity{.role = "observer", .name = "9"}));
    askers.back()->send(askers.back()->frames_of({message_of(Status{})}));
  }
  EXPECT_TRUE(askers.front()->is_closed());
  EXPECT_TRUE(look_at_cluster({.coordinator = coordinator_}, {}).cluster.has_value());
}

TEST_F(SecurityOfServing, RejectsMessagesOutsideTheRole) {
  const auto rejected = [&] {
    return look_at_cluster({.coordinator = coordinator_}, {}).servers.at(1).status->rejected_messages;
  };
  std::uint64_t before = rejected();
  for (const std::string role : {"server", "observer", "coordinator", "", "another"}) {
    HostilePeer peer(server_, {.role = role, .name = "9"});
    peer.send(peer.frames_of(
        {message_of(Request{}), message_of(Pull{}), message_of(Ticks{}), message_of(Status{})}));
    for (const auto deadline = Deadline::after_s(60); rejected() < before + 3 && !deadline.expired();) {
    }
    EXPECT_EQ(rejected(), before + 3) << role;
    before += 3;
  }
  HostilePeer worker(server_, {.role = "worker", .name = "9"});
  worker.send(worker.frames_of({message_of(Ping{}), message_of(Replicate{}), message_of(SnapshotPart{})}));
  for (const auto deadline = Deadline::after_s(60); rejected() < before + 3 && !deadline.expired();) {
  }
  EXPECT_EQ(rejected(), before + 3);
}

TEST_F(SecurityOfServing, CheckpointsStayBelowStartFolder) {
  Client worker({.worker = 0, .host = "here", .coordinator = coordinator_});
  const TableId sums = open_sums(worker);
  worker.push(sums, std::vector<float>(4, 1)).get();
  std::string said = "saved";
  try {
    worker.checkpoint(folder_ / "elsewhere");
  } catch (const DataError& error) {
    said = error.what();
  }
  EXPECT_THAT(said, testing::AllOf(HasSubstr("server own"), HasSubstr("is not a folder below"),
                                   HasSubstr("--checkpoints")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "elsewhere/checkpoint-1"));
  const std::filesystem::path here = "trireme-test-" + std::to_string(::getpid());
  const std::filesystem::path begun = worker.checkpoint(here);
  EXPECT_FALSE(read_manifest(begun).parts.empty());
  std::filesystem::remove_all(here);
}

TEST_F(SecurityOfServing, AnotherUserHasNoRole) {
  SKIP_UNLESS_ROOT();
  Client own({.worker = 0, .host = "here", .coordinator = coordinator_});
  const TableId sums = open_sums(own);
  own.push(sums, std::vector<float>(4, 1)).get();
  const std::string observer = test::as_user(test::kOtherUser, [&] {
    look_at_cluster({.coordinator = coordinator_}, {});
    return std::string("was told");
  });
  EXPECT_THAT(observer, HasSubstr("does not know the key of this user"));
  const std::string worker = test::as_user(test::kOtherUser, [&] {
    Client client({.worker = 1, .host = "there", .coordinator = coordinator_, .timeout_s = 2});
    client.push(open_sums(client), std::vector<float>(4, 100)).get();
    return std::string("pushed");
  });
  EXPECT_THAT(worker, HasSubstr("does not know the key of this user"));
  const std::string server = test::as_user(test::kOtherUser, [&] {
    std::string lines;
    ServeOptions serve;
    serve.loop.listen = {"tcp:127.0.0.1:0"};
    serve.loop.report = [&](const std::string& line) {
      lines += line;
      throw CommError(lines);
    };
    serve_params({.name = "evil", .host = "there", .address = {}, .coordinator = coordinator_}, serve);
    return lines;
  });
  EXPECT_THAT(server, HasSubstr("does not know the key of this user"));
  const ClusterReport report = look_at_cluster({.coordinator = coordinator_}, {});
  EXPECT_EQ(report.cluster->servers.size(), 1U);
  EXPECT_EQ(report.cluster->num_workers, 1U);
  std::vector<float> values(4);
  own.pull(sums, values).get();
  EXPECT_EQ(values, std::vector<float>(4, 1));
}

}  // namespace
}  // namespace trireme::ps
