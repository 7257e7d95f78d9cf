// Peers with the key of one role, given or leaked. Claims beyond that role are rejected.

#include <gmock/gmock.h>

#include "tests/unit/ps/hostile_peer.h"
#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/error.h"
#include "trireme/ps/client.h"
#include "trireme/ps/messages.h"
#include "trireme/ps/observer.h"

namespace trireme::ps {
namespace {

class SecurityRoles : public testing::Test {
 protected:
  const wire::Secret whole_ = wire::Secret::from_text(std::string(32, 's'), "the test");
  RealCluster cluster_{1, {.num_replicas = 1}, with(whole_)};
  Client owner_{{.worker = 5, .host = "here", .coordinator = cluster_.address()}, with(whole_)};
  const TableId sums_ = open_sums(owner_);

  static wire::NodeLoopOptions with(const wire::Secret& secret) {
    wire::NodeLoopOptions loop;
    loop.security = wire::Security::with_secret(secret);
    return loop;
  }
  static TableId open_sums(Client& client) {
    TableSpec spec;
    spec.name = "sums";
    spec.num_elements = 4;
    return client.open_table(spec);
  }
  std::vector<float> sums() {
    std::vector<float> values(4);
    owner_.pull(sums_, values).get();
    return values;
  }
  wire::Address server() { return owner_.map().servers.begin()->second.address; }
  ClusterStatus status() {
    return *look_at_cluster({.coordinator = cluster_.address(), .timeout_s = 60}, with(whole_)).cluster;
  }
  /// Whether a peer with this key is accepted with the stated identity.
  bool is_let_in(const wire::Address& address, const wire::Secret& key, const wire::PeerIdentity& stated) {
    HostilePeer peer(address);
    return peer.meet({.security = wire::Security::Kind::kSecret, .secret = key, .self = stated});
  }
  /// A peer with the identity of its key, for sending other messages.
  std::unique_ptr<HostilePeer> peer_with(const std::string& role, const std::string& name,
                                         const wire::Address& address) {
    auto peer = std::make_unique<HostilePeer>(address);
    EXPECT_TRUE(peer->meet({.security = wire::Security::Kind::kSecret,
                            .secret = whole_.of_role(role + "." + name),
                            .self = {.role = role, .name = name}}));
    return peer;
  }
  static Heartbeat heartbeat_of(Role role, WorkerId worker) {
    return {.role = role,
            .name = "evil",
            .incarnation = 7,
            .host = "there",
            .address = "tcp:127.0.0.1:1",
            .worker = worker,
            .versions = {}};
  }
};

TEST_F(SecurityRoles, KeyProvesItsRoleOnly) {
  const wire::PeerIdentity worker{.role = "worker", .name = "3"},
      observer{.role = "observer", .name = "team"};
  const std::vector<wire::PeerIdentity> all = {worker,
                                               observer,
                                               {.role = "worker", .name = "5"},
                                               {.role = "server", .name = "server0"},
                                               {.role = "coordinator", .name = "0"},
                                               {.role = "worker", .name = ""},
                                               {.role = "", .name = ""}};
  for (const auto& own : {worker, observer}) {
    const wire::Secret key = whole_.of_role(own.role + "." + own.name);
    for (const auto& stated : all) {
      const bool is_own = stated.role == own.role && stated.name == own.name;
      for (const auto& address : {cluster_.address(), server()})
        EXPECT_EQ(is_let_in(address, key, stated), is_own)
            << own.role << " states " << stated.role << stated.name;
    }
  }
  EXPECT_EQ(status().num_servers, 1U);
}

TEST_F(SecurityRoles, WorkerRegistersOnlyAsItself) {
  for (const Heartbeat& heartbeat : {heartbeat_of(Role::kWorker, 4), heartbeat_of(Role::kServer, 3)}) {
    const auto peer = peer_with("worker", "3", cluster_.address());
    peer->send(peer->frames_of({message_of(heartbeat)}));
    EXPECT_TRUE(peer->is_closed());
  }
  const ClusterStatus seen = status();
  EXPECT_EQ(seen.num_workers, 1U);
  EXPECT_EQ(seen.num_servers, 1U);
  EXPECT_EQ(seen.rejected_messages, 2U);
}

TEST_F(SecurityRoles, WorkerPushesAndPullsOnlyForItself) {
  owner_.push(sums_, std::vector<float>(4, 1)).get();
  const ClusterMap map = owner_.map();
  const PartitionId partition = map.partition_of(sums_, 0);
  const wire::Buffer thousands = wire::Buffer::of(std::vector<std::byte>(16, std::byte{0x44}));
  const auto peer = peer_with("worker", "3", server());
  // The map tells every member the current lives.
  peer->send(peer->frames_of({message_of(Request{.partition = partition,
                                                 .epoch = map.partitions[partition].epoch,
                                                 .life = owner_.life(),
                                                 .registered_at = 0,
                                                 .sequence = 1000,
                                                 .op = RequestOp::kLeave},
                                         thousands),
                              message_of(Ticks{.life = owner_.life(), .ticks = {}}),
                              message_of(Pull{.partition = partition, .life = owner_.life()})}));
  const auto rejected = [&] {
    return look_at_cluster({.coordinator = cluster_.address(), .timeout_s = 60}, with(whole_))
        .servers.at(1)
        .status->rejected_messages;
  };
  std::uint64_t seen = 0;
  for (const auto deadline = Deadline::after_s(60); (seen = rejected()) < 3 && !deadline.expired();) {
  }
  EXPECT_EQ(seen, 3U);
  EXPECT_EQ(sums(), std::vector<float>(4, 1));
}

TEST_F(SecurityRoles, StatusReaderReadsAndWritesNothing) {
  const wire::Secret key = whole_.of_role("observer.team");
  EXPECT_TRUE(
      look_at_cluster({.coordinator = cluster_.address(), .timeout_s = 60}, with(key)).servers.at(1).status);
  EXPECT_THROW(
      Client({.worker = 0, .host = "there", .coordinator = cluster_.address(), .timeout_s = 1}, with(key)),
      CommError);
  for (const wire::Message& message :
       {message_of(CreateTable{}), message_of(heartbeat_of(Role::kServer, 0)),
        message_of(heartbeat_of(Role::kWorker, 5)), message_of(BeginAnew{}), message_of(Suspect{})}) {
    const auto peer = peer_with("observer", "team", cluster_.address());
    peer->send(peer->frames_of({message}));
    EXPECT_TRUE(peer->is_closed());
  }
  EXPECT_EQ(status().num_workers, 1U);
}

TEST_F(SecurityRoles, ClientNeedsKeyOfItsWorker) {
  Client three({.worker = 3, .host = "there", .coordinator = cluster_.address()},
               with(whole_.of_role("worker.3")));
  three.push(open_sums(three), std::vector<float>(4, 2)).get();
  EXPECT_EQ(sums(), std::vector<float>(4, 2));
  EXPECT_THROW(Client({.worker = 4, .host = "there", .coordinator = cluster_.address(), .timeout_s = 1},
                      with(whole_.of_role("worker.3"))),
               CommError);
  // A key whose name is not a number is valid for any worker.
  Client four({.worker = 4, .host = "there", .coordinator = cluster_.address()},
              with(whole_.of_role("worker.all")));
  four.push(open_sums(four), std::vector<float>(4, 3)).get();
  EXPECT_EQ(sums(), std::vector<float>(4, 5));
}

}  // namespace
}  // namespace trireme::ps
