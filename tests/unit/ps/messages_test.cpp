// Truncated, extended, changed or random heads. They are rejected or decoded to a value, and never use more
// memory than their bytes justify.

#include "trireme/ps/messages.h"

#include <gtest/gtest.h>

#include "tests/unit/ps/cluster.h"
#include "trireme/base/random.h"
#include "trireme/ps/internal/row_batch.h"

namespace trireme::ps {
namespace {

Heartbeat some_heartbeat() {
  Heartbeat heartbeat;
  heartbeat.name = "server one";
  heartbeat.address = "tcp:host:1";
  heartbeat.versions = {{1, 2}, {3, 4}};
  return heartbeat;
}

TEST(Messages, ComeBackAsTheyWere) {
  const auto heartbeat = head_of<Heartbeat>(message_of(some_heartbeat()));
  ASSERT_TRUE(heartbeat.has_value());
  EXPECT_EQ(heartbeat->name, "server one");
  EXPECT_EQ(heartbeat->versions[1].version, 4U);
  EXPECT_FALSE(head_of<Pull>(message_of(some_heartbeat())).has_value());
}

TEST(Messages, AreRejectedWhenCutOrTooLong) {
  const std::vector<std::byte> whole = wire::encode(some_heartbeat());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(wire::decode<Heartbeat>(std::span(whole).first(size)).has_value()) << size;
  std::vector<std::byte> longer = whole;
  longer.push_back({});
  EXPECT_FALSE(wire::decode<Heartbeat>(longer).has_value());
}

TEST(Messages, RejectRepeatedOrUnorderedKeys) {
  const auto written = [](std::vector<std::pair<PartitionId, std::uint32_t>> rows) {
    return wire::encode(std::tuple(std::move(rows)));
  };
  using Map = std::tuple<std::map<PartitionId, std::uint32_t>>;
  ASSERT_TRUE(wire::decode<Map>(written({{1, 7}, {2, 8}})).has_value());
  EXPECT_FALSE(wire::decode<Map>(written({{1, 7}, {1, 8}})).has_value());
  EXPECT_FALSE(wire::decode<Map>(written({{2, 7}, {1, 8}})).has_value());
}

TEST(Messages, RejectCountsThatNoBytesStandAfter) {
  MapChange change;
  change.servers.resize(1);
  std::vector<std::byte> bytes = wire::encode(change);
  const std::uint32_t many = UINT32_MAX;
  std::memcpy(bytes.data() + 28, &many, sizeof many);  // of servers: after two u64 and three u32
  EXPECT_FALSE(wire::decode<MapChange>(bytes).has_value());
}

TEST(Messages, RejectUnknownEnumerators) {
  Reply reply;
  std::vector<std::byte> bytes = wire::encode(reply);
  bytes[4 + 8 + 8] = std::byte{200};  // after partition, sequence and incarnation: the error
  EXPECT_FALSE(wire::decode<Reply>(bytes).has_value());
}

/// Sends arbitrary bytes to running nodes. The nodes count rejections and continue to serve.
TEST(Messages, OfAnyBytesLeaveServersServing) {
  class Babbler final : public wire::Node {
   public:
    explicit Babbler(std::uint64_t seed) : random_(seed) {}
    void on_start(wire::Surroundings& surroundings) override {
      surroundings_ = &surroundings;
      for (const char* name : {"inproc:server0", "inproc:server1", "inproc:coordinator"})
        connections_.push_back(surroundings.network().connect(name));
      surroundings.start_timer(0.01);
    }
    void on_connected(wire::ConnectionId, const wire::PeerIdentity&) override {}
    void on_message(wire::ConnectionId, wire::Message) override { ++num_answers; }
    void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {}
    void on_timer(wire::TimerId) override {
      for (const wire::ConnectionId connection : connections_) {
        for (int i = 0; i < 20; ++i) surroundings_->network().send(connection, made_up());
      }
      surroundings_->start_timer(0.01);
    }
    int num_answers = 0;

   private:
    std::vector<std::byte> bytes(std::uint64_t most) {
      std::vector<std::byte> result(random_.below(most));
      for (std::byte& byte : result)
        byte = static_cast<std::byte>(random_.below(random_.below(2) == 0 ? 4 : 256));
      return result;
    }
    wire::Message made_up() {
      wire::Message message;
      message.kind = static_cast<std::uint16_t>(random_.below(24));
      message.head = bytes(150);
      if (random_.below(2) == 0) {  // a nearly valid one
        Request request;
        request.partition = static_cast<PartitionId>(random_.below(9));
        request.epoch = random_.below(6);
        request.table = static_cast<TableId>(random_.below(3));
        request.life.worker = static_cast<WorkerId>(random_.below(4));
        request.sequence = random_.below(4);
        message = random_.below(2) == 0 ? message_of(request) : message_of(some_pull(request));
        for (std::uint64_t i = random_.below(3); i > 0; --i)
          message.head[random_.below(message.head.size())] = static_cast<std::byte>(random_.below(256));
      }
      message.body = wire::Buffer::of(bytes(100));
      if (random_.below(4) == 0) message.body = some_rows();
      return message;
    }
    static Pull some_pull(const Request& request) {
      return {.partition = request.partition,
              .epoch = request.epoch,
              .life = request.life,
              .table = request.table};
    }
    /// These are nearly valid, too.
    wire::Buffer some_rows() {
      RowBatchWriter writer(2, 3);
      for (std::size_t i = 0; i < 2; ++i) writer.put(i, random_.below(3), 1)[0] = 1;
      const wire::Buffer right = std::move(writer).buffer();
      std::vector<std::byte> rows(right.bytes().begin(), right.bytes().end());
      for (std::uint64_t i = random_.below(3); i > 0; --i)
        rows[random_.below(32)] = static_cast<std::byte>(random_.below(256));
      rows.resize(random_.below(2) == 0 ? rows.size() : random_.below(rows.size()));
      return wire::Buffer::of(std::move(rows));
    }
    Random random_;
    wire::Surroundings* surroundings_ = nullptr;
    std::vector<wire::ConnectionId> connections_;
  };
  Cluster cluster(5);
  TableSpec spec;
  spec.name = "weights";
  spec.num_elements = 8;
  spec.chunk_elements = 2;
  spec.staleness = kAsynchronous;
  const TableId table = cluster.create(0, spec);
  TableSpec sparse;
  sparse.name = "rows";
  sparse.kind = TableKind::kSparse;
  sparse.rows.elements = 3;
  ASSERT_NE(cluster.create(0, sparse), 0U);
  ASSERT_TRUE(cluster.settles(10));
  for (const char* role : {"server", "worker"}) {
    const std::string name = std::string("babbler of role ") + role;
    cluster.simulation.add(name, role, [] { return std::make_unique<Babbler>(3); });
    cluster.simulation.start(name);
  }
  cluster.simulation.run_for(20);
  EXPECT_GT(cluster.server(0).counts().rejected, 1000U);
  const Result pushed = cluster.wait(
      [&](Done done) { cluster.worker(0).push(table, floats(std::vector<float>(8, 2)), std::move(done)); });
  EXPECT_EQ(pushed.error, ErrorKind::kNone) << pushed.message;
  std::vector<float> values(8);
  const Result pulled =
      cluster.wait([&](Done done) { cluster.worker(0).pull(table, values, std::move(done)); });
  EXPECT_EQ(pulled.error, ErrorKind::kNone) << pulled.message;
  EXPECT_EQ(values, std::vector<float>(8, 2));
}

}  // namespace
}  // namespace trireme::ps
