// Malicious peers against a coordinator and servers over real sockets. Their messages are rejected and
// counted and take no memory. A good client keeps the values that it pushed. For more frames:
//   TRIREME_HOSTILE_FRAMES=1000000 unit_ps --gtest_filter=HostilePeers.AreRejected*

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <thread>

#include "tests/unit/ps/hostile_peer.h"
#include "tests/unit/ps/made_up.h"
#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/clock.h"
#include "trireme/ps/client.h"
#include "trireme/ps/observer.h"
#include "trireme/wire/frame.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TRIREME_KEEPS_FREED_MEMORY 1
#else
#define TRIREME_KEEPS_FREED_MEMORY 0
#endif

namespace trireme::ps {
namespace {

constexpr std::uint32_t kChunks = 16, kChunkElements = 64;

std::uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib << 10;
  }
  ADD_FAILURE() << "/proc/self/status has no VmRSS";
  return 0;
}

/// A worker that checks all values.
class GoodClient {
 public:
  explicit GoodClient(const wire::Address& coordinator, wire::NodeLoopOptions loop = {})
      : client_({.worker = 0, .host = "here", .coordinator = coordinator}, std::move(loop)) {
    TableSpec spec;
    spec.name = "sums";
    spec.num_elements = kChunks * kChunkElements;
    spec.chunk_elements = kChunkElements;
    spec.staleness = kAsynchronous;
    table_ = client_.open_table(spec);
  }
  Client& client() { return client_; }
  TableId table() const { return table_; }
  /// Pushes once more. Every element must equal the number of its pushes.
  void push_and_look() {
    const std::vector<float> ones(kChunks * kChunkElements, 1);
    client_.push(table_, ones).get();
    std::vector<float> values(ones.size());
    client_.pull(table_, values).get();
    ASSERT_EQ(values, std::vector<float>(ones.size(), ++sum_));
  }

 private:
  Client client_;
  TableId table_ = 0;
  float sum_ = 0;
};

std::vector<wire::Address> addresses_of(const RealCluster& cluster, const Client& client) {
  std::vector<wire::Address> addresses = {cluster.address()};
  const ClusterMap map = client.map();
  for (const auto& [id, server] : map.servers) addresses.push_back(server.address);
  return addresses;
}

std::uint64_t counted(const RealCluster& cluster, const std::string& what) {
  std::uint64_t sum = 0;
  for (auto& counts : cluster.channel_counts()) sum += counts[what];
  return sum;
}

/// Rejections by the nodes themselves: messages, requests and pulls.
std::uint64_t rejected_by_nodes(const ClusterReport& report) {
  std::uint64_t sum = report.cluster->rejected_messages;
  for (const auto& [id, server] : report.servers) {
    sum += server.status->rejected_messages;
    for (const auto& [why, count] : server.status->held.counts.rejected) sum += count;
  }
  return sum;
}

class Crowd {
 public:
  Crowd(std::vector<wire::Address> addresses, const ClusterMap& map, std::uint64_t seed)
      : addresses_(std::move(addresses)), map_(map), makes_up_(seed) {}

  std::uint64_t num_frames() const { return num_frames_; }
  std::uint64_t num_damaged() const { return num_damaged_; }

  /// Sends invalid frames, each from a peer of its own, which is disconnected for it.
  void send_damaged_frames() {
    Random& random = makes_up_.random();
    for (int kind = 0; kind < 5; ++kind) {
      HostilePeer peer(any_address(), {.role = "worker", .name = "9"});
      const std::string good = peer.frames_of({message_of(Status{})});
      std::string bad = good;
      if (kind == 0) bad[random.below(bad.size())] ^= static_cast<char>(1 << random.below(8));
      if (kind == 1) bad = text_of(random_header());
      if (kind == 2)
        bad = text_of(wire::encode({.message = 1, .total_bytes = 1LL << 32, .payload_bytes = 1 << 20}));
      if (kind == 3) bad = good + good;                                   // replayed
      if (kind == 4) bad = good + peer.frames_of({made_up()}).substr(1);  // out of sequence
      peer.send(bad);
      ASSERT_TRUE(peer.is_closed()) << "by a frame damaged in way " << kind;
      ++num_damaged_;
      ++num_frames_;
    }
    // Starts a message of nearly 1 GiB that never ends.
    HostilePeer announces(any_address(), {.role = "worker", .name = "9"});
    announces.send(
        text_of(wire::encode({.message = 1, .total_bytes = 1'000'000'000, .payload_bytes = 1 << 20})));
    ++num_frames_;
  }

  /// Sends valid frames with invalid heads and bodies, of every kind.
  void send_messages() {
    const char* roles[] = {"worker", "observer", "", "coordinator", "server"};
    const char* role = roles[makes_up_.random().below(5)];
    HostilePeer peer(any_address(), {.role = role, .name = "9"});
    for (int batch = 0; batch < 8; ++batch) {
      std::vector<wire::Message> messages;
      for (int i = 0; i < 16; ++i) messages.push_back(role == roles[4] ? random_bytes() : made_up());
      num_frames_ += messages.size();
      // The coordinator disconnects a peer that sends such messages.
      if (!peer.send(peer.frames_of(messages))) return;
    }
  }

 private:
  static std::string text_of(const wire::FrameHeaderBytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  wire::FrameHeaderBytes random_header() {
    wire::FrameHeaderBytes bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(makes_up_.random().below(256));
    return bytes;
  }
  const wire::Address& any_address() { return addresses_[makes_up_.random().below(addresses_.size())]; }

  wire::Message random_bytes() {
    return {.kind = static_cast<std::uint16_t>(
                makes_up_.random().below(static_cast<std::uint64_t>(MessageKind::kLast) + 3)),
            .head = makes_up_.bytes(150),
            .body = wire::Buffer::of(makes_up_.bytes(200))};
  }
  /// A message of an existing kind, and often for an existing partition and epoch.
  wire::Message made_up() {
    wire::Message message = random_bytes();
    const std::uint64_t how = makes_up_.random().below(3);
    if (how == 0) return message;
    for_each_head([&]<class Head>() {
      if (message.kind != static_cast<std::uint16_t>(Head::kKind)) return;
      Head head = makes_up_.one<Head>();
      if constexpr (requires { head.partition, head.epoch; }) {
        head.partition = static_cast<PartitionId>(makes_up_.random().below(map_.partitions.size()));
        head.epoch = map_.partitions[head.partition].epoch;
      }
      message.head = wire::encode(head);
      if (how == 2) message.head = makes_up_.mutated(std::move(message.head));
    });
    return message;
  }

  const std::vector<wire::Address> addresses_;
  const ClusterMap map_;
  MakesUp makes_up_;
  std::uint64_t num_frames_ = 0, num_damaged_ = 0;
};

TEST(HostilePeers, AreRejectedInFlatMemoryDuringService) {
  const char* wanted = std::getenv("TRIREME_HOSTILE_FRAMES");
  const std::uint64_t num_frames = wanted == nullptr ? 20'000 : std::strtoull(wanted, nullptr, 10);
  RealCluster cluster(2);
  GoodClient good(cluster.address());
  good.push_and_look();
  Crowd crowd(addresses_of(cluster, good.client()), good.client().map(), 1);
  std::uint64_t warm_bytes = 0;
  while (crowd.num_frames() < num_frames) {
    if (warm_bytes == 0 && crowd.num_frames() > num_frames / 4) warm_bytes = resident_bytes();
    for (int i = 0; i < 8; ++i) crowd.send_messages();
    ASSERT_NO_FATAL_FAILURE(crowd.send_damaged_frames());
    ASSERT_NO_FATAL_FAILURE(good.push_and_look()) << "after " << crowd.num_frames() << " frames";
  }
  const std::uint64_t bytes = resident_bytes();
  RecordProperty("frames", static_cast<int>(crowd.num_frames()));
  RecordProperty(
      "grown_kib",
      static_cast<int>((static_cast<std::int64_t>(bytes) - static_cast<std::int64_t>(warm_bytes)) >> 10));
  if (!TRIREME_KEEPS_FREED_MEMORY) {
    EXPECT_LT(bytes, warm_bytes + (32 << 20));
  }
  EXPECT_EQ(counted(cluster, "channels closed: bad frame"), crowd.num_damaged());
  const ClusterReport report = look_at_cluster({.coordinator = cluster.address(), .timeout_s = 60});
  EXPECT_GT(rejected_by_nodes(report), crowd.num_frames() / 4);
  EXPECT_EQ(report.cluster->num_servers, 2U);
  EXPECT_EQ(report.cluster->num_lost, 0U);
  std::cout << crowd.num_frames() << " frames, " << crowd.num_damaged() << " streams closed, "
            << rejected_by_nodes(report) << " messages refused; resident " << (warm_bytes >> 10)
            << " KiB, then " << (bytes >> 10) << " KiB\n";
}

TEST(HostilePeers, WorkersCannotSendMessagesOfServers) {
  RealCluster cluster(2);
  GoodClient good(cluster.address());
  good.push_and_look();
  const ClusterMap map = good.client().map();
  std::vector<ReplicaReport> before;
  for (PartitionId id = 0; id < map.partitions.size(); ++id) before.push_back(cluster.server(0).report(id));
  HostilePeer peer(map.servers.begin()->second.address, {.role = "worker", .name = "9"});
  std::uint64_t num_sent = 0;
  for (PartitionId id = 0; id < map.partitions.size(); ++id) {
    const Epoch epoch = map.partitions[id].epoch;
    const Version next = before[id].version + 1;
    LogRecord nothing;
    const auto record = wire::encode(nothing);
    const Replicate replicate = {.partition = id,
                                 .epoch = epoch,
                                 .has_record = true,
                                 .version = next,
                                 .record_bytes = static_cast<std::uint32_t>(record.size())};
    const std::vector<wire::Message> messages = {
        message_of(replicate, wire::Buffer::of(record)),
        message_of(ReplicateAck{.partition = id, .epoch = epoch, .received = next, .stable = next}),
        message_of(SnapshotPart{.partition = id, .epoch = epoch, .version = next, .num_parts = 1}),
        message_of(SnapshotAck{.partition = id, .epoch = epoch, .version = next, .num_received = 1})};
    ASSERT_TRUE(peer.send(peer.frames_of(messages)));
    num_sent += messages.size();
  }
  const auto rejected = [&] {
    return look_at_cluster({.coordinator = cluster.address(), .timeout_s = 60})
        .servers.begin()
        ->second.status->rejected_messages;
  };
  const Deadline deadline = Deadline::after_s(60);  // ends a test that would hang
  while (rejected() < num_sent && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(rejected(), num_sent);
  for (PartitionId id = 0; id < map.partitions.size(); ++id) {
    const ReplicaReport after = cluster.server(0).report(id);
    EXPECT_EQ(after.version, before[id].version);
    EXPECT_EQ(after.digest, before[id].digest);
  }
  // The coordinator disconnects a peer that sends such messages.
  const PartitionNews news = {
      .partition = 0, .epoch = map.partitions[0].epoch, .server = map.partitions[0].chain[1]};
  for (const wire::Message& message :
       {message_of(Suspect{news}), message_of(CaughtUp{news}), message_of(Drained{news})}) {
    HostilePeer liar(cluster.address(), {.role = "worker", .name = "9"});
    liar.send(liar.frames_of({message}));
    EXPECT_TRUE(liar.is_closed());
  }
  EXPECT_EQ(look_at_cluster({.coordinator = cluster.address(), .timeout_s = 60}).cluster->map_version,
            map.version);
  good.push_and_look();
}

TEST(HostilePeers, ClaimedServersMustBeValid) {
  RealCluster cluster(2);
  GoodClient good(cluster.address());
  const Heartbeat sound = {.role = Role::kServer,
                           .name = "server0",  // the name of another process
                           .incarnation = 7,
                           .host = "here",
                           .address = "tcp:127.0.0.1:1",
                           .versions = {}};
  std::vector<Heartbeat> unsound(8, sound);
  unsound[0].address = "nowhere";
  unsound[1].address = "tcp:";
  unsound[2].weight = std::numeric_limits<double>::quiet_NaN();
  unsound[3].weight = -1;
  unsound[4].weight = std::numeric_limits<double>::infinity();
  unsound[5].name.clear();
  unsound[6].host.assign(60'000, 'h');
  unsound[7].role = Role::kWorker;  // not the role that it has proved
  for (std::size_t i = 0; i < unsound.size(); ++i) {
    unsound[i].name += unsound[i].name.empty() ? "" : " and another";
    HostilePeer peer(cluster.address(), {.role = "server", .name = "9"});
    peer.send(peer.frames_of({message_of(unsound[i])}));
    EXPECT_TRUE(peer.is_closed()) << i;
  }
  // A server may report partitions, but only existing ones.
  HostilePeer talks(cluster.address(), {.role = "server", .name = "9"});
  const std::uint64_t before = resident_bytes();
  Heartbeat says = sound;
  says.versions.resize(5000);
  for (PartitionId first = 0; first < 1'000'000; first += 5000) {
    for (PartitionId i = 0; i < 5000; ++i) says.versions[i] = {1000 + first + i, 1};
    ASSERT_TRUE(talks.send(talks.frames_of({message_of(says)})));
  }
  // A connection belongs to one member.
  says.versions.clear();
  says.role = Role::kWorker;
  says.worker = 99;
  HostilePeer twice(cluster.address(), {.role = "worker", .name = "9"});
  for (const Incarnation life : {1, 2}) {
    says.incarnation = life;
    twice.send(twice.frames_of({message_of(says)}));
  }
  EXPECT_TRUE(twice.is_closed());
  const auto status = *look_at_cluster({.coordinator = cluster.address(), .timeout_s = 60}).cluster;
  EXPECT_EQ(status.rejected_messages, unsound.size() + 1);
  EXPECT_EQ(status.num_servers, 2U);
  if (!TRIREME_KEEPS_FREED_MEMORY) {
    EXPECT_LT(resident_bytes(), before + (24 << 20));
  }
  good.push_and_look();
}

TEST(HostilePeers, PrematureRequestsFillNoServer) {
  RealCluster cluster(1);
  GoodClient good(cluster.address());
  const ClusterMap map = good.client().map();
  const PartitionId partition = map.partition_of(good.table(), 0);
  HostilePeer peer(map.servers.begin()->second.address, {.role = "worker", .name = "9"});
  constexpr RequestId kPulls = 20'000;
  for (RequestId request = 1; request <= kPulls; ++request) {
    const Pull pull = {.request = request,
                       .partition = partition,
                       .epoch = map.partitions[partition].epoch,
                       .life = {.worker = 9, .incarnation = 9},
                       .after = 1,  // waits for a push that never comes
                       .table = good.table()};
    ASSERT_TRUE(peer.send(peer.frames_of({message_of(pull)})));
  }
  HeldStatus held;
  const Deadline deadline = Deadline::after_s(60);  // ends a test that would hang
  do {
    const ClusterReport report = look_at_cluster({.coordinator = cluster.address(), .timeout_s = 60});
    ASSERT_TRUE(report.servers.contains(1) && report.servers.at(1).status) << "the flood holds up the server";
    held = report.servers.at(1).status->held;
  } while (held.parked_pulls + held.counts.rejected[ErrorKind::kOverloaded] < kPulls && !deadline.expired());
  EXPECT_LE(held.parked_pulls, 4096U);
  EXPECT_EQ(held.parked_pulls + held.counts.rejected[ErrorKind::kOverloaded], kPulls);
  good.push_and_look();
}

TEST(HostilePeers, PeersWithoutSecretStayStrangers) {
  wire::NodeLoopOptions loop;
  loop.security = wire::Security::with_secret(wire::Secret::from_text(std::string(32, 's'), "the test"));
  RealCluster cluster(2, {}, loop);
  GoodClient good(cluster.address(), loop);
  good.push_and_look();
  MakesUp makes_up(2);
  constexpr std::uint64_t kRounds = 100;
  for (const wire::Address& address : addresses_of(cluster, good.client())) {
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      HostilePeer guesses(address);
      wire::HandshakeOptions options = {.security = wire::Security::Kind::kSecret,
                                        .self = {.role = "server", .name = "9"}};
      options.secret =
          wire::Secret::from_text(std::string(32, static_cast<char>('a' + round % 18)), "the test");
      EXPECT_FALSE(guesses.meet(options));
      HostilePeer does_not_meet(address);
      does_not_meet.send(does_not_meet.frames_of({message_of(makes_up.one<Request>())}));
      EXPECT_TRUE(does_not_meet.is_closed());
    }
  }
  EXPECT_EQ(counted(cluster, "refused: wrong secret"), 3 * kRounds);
  EXPECT_EQ(counted(cluster, "channels closed: refused"), 2 * 3 * kRounds);
  good.push_and_look();
}

TEST(HostilePeers, SlowPeersAreClosedWithoutDelay) {
  wire::NodeLoopOptions loop;
  loop.handshake_s = 1;
  loop.patience_s = 1;
  loop.max_strangers = 32;
  RealCluster cluster(2, {}, loop);
  GoodClient good(cluster.address());
  for (const wire::Address& address : addresses_of(cluster, good.client())) {
    std::vector<std::unique_ptr<HostilePeer>> strangers;
    for (int i = 0; i < 100; ++i) strangers.push_back(std::make_unique<HostilePeer>(address));
    // Some peers send one byte now and then.
    HostilePeer trickles(address);
    const std::string byte(1, 'T');
    // Other peers stop in the middle of a frame.
    HostilePeer stops(address, {.role = "worker", .name = "9"});
    stops.send(stops.frames_of({message_of(Status{})}).substr(0, 70));
    for (int i = 0; i < 5; ++i) {
      trickles.send(byte);
      ASSERT_NO_FATAL_FAILURE(good.push_and_look());
    }
    for (const auto& each : strangers) EXPECT_TRUE(each->is_closed());
    EXPECT_TRUE(trickles.is_closed());
    EXPECT_TRUE(stops.is_closed());
  }
  EXPECT_GE(counted(cluster, "refused: too many strangers"), 3U * (100 - 32));
  EXPECT_GE(counted(cluster, "channels closed: too slow"), 3U);
  good.push_and_look();
}

}  // namespace
}  // namespace trireme::ps
