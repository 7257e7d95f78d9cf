// The partitions of one owner, with events from the test.

#include "trireme/ps/internal/partition_owner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/unit/ps/cluster.h"
#include "trireme/base/random.h"
#include "trireme/compress/codec.h"

namespace trireme::ps {
namespace {

constexpr ServerId kSelf = 1;
constexpr int kWorkers = 3;
constexpr PartitionId kPartitions = 4096;

class OwnerTest : public testing::Test {
 protected:
  OwnerTest() : owner(facts, {}, [this](OwnerOutput saying) { said.push_back(std::move(saying)); }) {
    facts.now_ns = [this] { return now_ns; };
    facts.lease_until_ns = 1'000'000'000;  // the only replica of its chains, and allowed to be
    ClusterMap members;
    members.version = 1;
    members.servers[kSelf].id = kSelf;
    for (WorkerId worker = 0; worker < kWorkers; ++worker) members.workers[worker] = {{worker, 1}, 1};
    spec.id = 1;
    spec.num_elements = spec.chunk_elements = 4;
    spec.staleness = kAsynchronous;
    members.tables[1] = spec;
    map = {.members = std::make_shared<ClusterMap>(members), .self = kSelf, .partitions = {}};
    for (PartitionId id = 0; id < kPartitions; ++id)
      map.partitions.push_back({id, {.epoch = 1, .chain = {kSelf}}});
    tell(map);
    owner.go_on();
  }

  void tell(OwnerEvent::What what, wire::Buffer body = {}) {
    OwnerEvent event(std::move(what));
    event.body = std::move(body);
    owner.take(event);
  }
  void request(WorkerId worker, Sequence sequence, RequestOp op, wire::Buffer body = {}) {
    tell(Request{.partition = 7,
                 .epoch = 1,
                 .life = {worker, 1},
                 .registered_at = 1,
                 .sequence = sequence,
                 .op = op,
                 .table = 1},
         std::move(body));
  }
  std::size_t num_answers() const {
    std::size_t count = 0;
    for (const OwnerOutput& saying : said) {
      const auto* answer = std::get_if<PendingReply>(&saying);
      if (answer == nullptr) continue;
      const auto replies = head_of<Replies>(answer->message);
      count += replies ? replies->replies.size() : 1;
    }
    return count;
  }

  std::size_t num_to_server() const {
    std::size_t count = 0;
    for (const OwnerOutput& saying : said) count += std::holds_alternative<ServerMessage>(saying) ? 1 : 0;
    return count;
  }

  std::int64_t now_ns = 1;
  ServerFacts facts;
  std::vector<OwnerOutput> said;
  PartitionOwner owner;
  TableSpec spec;
  MapEvent map;
};

TEST_F(OwnerTest, MergesWaitingRequestsIntoOneRecord) {
  for (WorkerId worker = 0; worker < kWorkers; ++worker) request(worker, 1, RequestOp::kJoin);
  owner.go_on();
  EXPECT_EQ(owner.report(7).version, 1U);
  for (WorkerId worker = 0; worker < kWorkers; ++worker)
    request(worker, 2, RequestOp::kPush, floats({1, 2, 3, 4}));
  EXPECT_EQ(num_answers(), 3U) << "it acts when it is told to";
  owner.go_on();
  EXPECT_EQ(owner.report(7).version, 2U) << "three pushes are one record";
  EXPECT_EQ(num_answers(), 6U);
  tell(Pull{.partition = 7, .epoch = 1, .life = {0, 1}, .table = 1});
  owner.go_on();
  const auto& answer = std::get<PendingReply>(said.back()).message;
  const std::vector<float> sums = {3, 6, 9, 12};
  ASSERT_EQ(answer.body.size(), sums.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(answer.body.bytes().data(), sums.data(), answer.body.size()), 0);
}

TEST_F(OwnerTest, AnswersPullsWithRequestedPriority) {
  for (const wire::Priority priority : {4, 0, 7}) {
    tell(Pull{.partition = 7, .epoch = 1, .life = {0, 1}, .table = 1, .priority = priority});
    owner.go_on();
    EXPECT_EQ(std::get<PendingReply>(said.back()).message.priority, priority);
  }
}

TEST_F(OwnerTest, RequestsUnsentKeysBeforeAnyUse) {
  ClusterMap members = *map.members;
  members.version = 2;
  TableSpec sparse = spec;
  sparse.id = 2;
  sparse.kind = TableKind::kSparse;
  sparse.num_elements = 0;
  sparse.rows.elements = 1;
  members.tables[2] = sparse;
  tell(MapEvent{.members = std::make_shared<ClusterMap>(members), .self = kSelf, .partitions = {}});
  request(0, 1, RequestOp::kJoin);
  owner.go_on();
  RowBatchWriter writer(2, 1);
  writer.put(0, 5, 1)[0] = 1;
  writer.put(1, 8, 1)[0] = 1;
  const wire::Buffer whole = std::move(writer).buffer();
  const std::uint64_t hash = hash_of_keys(7, whole.bytes());
  const auto push = [&](Sequence sequence, bool with_hash) {
    tell(Request{.partition = 7,
                 .epoch = 1,
                 .life = {0, 1},
                 .registered_at = 1,
                 .sequence = sequence,
                 .op = RequestOp::kPush,
                 .table = 2,
                 .keys = with_hash ? hash : 0},
         with_hash ? without_keys(whole.bytes()) : whole);
    owner.go_on();
    return head_of<Reply>(std::get<PendingReply>(said.back()).message)->error;
  };
  const Version before = owner.report(7).version;
  EXPECT_EQ(push(2, true), ErrorKind::kUnknownKeys);
  EXPECT_EQ(owner.report(7).version, before);
  EXPECT_EQ(push(2, false), ErrorKind::kNone);
  EXPECT_EQ(push(3, true), ErrorKind::kNone);
  EXPECT_EQ(owner.report(7).version, before + 2);
  tell(ClosedEvent{});
  EXPECT_EQ(push(4, true), ErrorKind::kUnknownKeys) << "another connection has sent nothing";
}

TEST_F(OwnerTest, AnswersTicksOfMessageTogether) {
  Ticks ticks = {.life = {0, 1}, .registered_at = 1, .ticks = {}};
  for (PartitionId id = 0; id < 50; ++id) {
    tell(Request{.partition = id,
                 .epoch = 1,
                 .life = {0, 1},
                 .registered_at = 1,
                 .sequence = 1,
                 .op = RequestOp::kJoin});
    ticks.ticks.push_back({.partition = id, .epoch = 1, .sequence = 2, .clock = 1});
  }
  owner.go_on();
  said.clear();
  tell(ticks);
  owner.go_on();
  ASSERT_EQ(said.size(), 1U);
  const auto replies = head_of<Replies>(std::get<PendingReply>(said[0]).message);
  ASSERT_TRUE(replies);
  ASSERT_EQ(replies->replies.size(), 50U);
  for (const Reply& reply : replies->replies) {
    EXPECT_EQ(reply.error, ErrorKind::kNone);
    EXPECT_EQ(reply.min_clock, 1U);
  }
}

TEST_F(OwnerTest, RejectsAndCountsForeignCodecBody) {
  ClusterMap members = *map.members;
  members.version = 2;
  members.tables[1].compression.push = "top-k";
  tell(MapEvent{.members = std::make_shared<ClusterMap>(members), .self = kSelf, .partitions = {}});
  request(0, 1, RequestOp::kJoin);
  owner.go_on();
  Random random(1);
  std::uint64_t num_rejected = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> body(random.below(24));
    if (random.below(2) == 0) {  // valid or nearly valid
      const wire::Buffer right =
          in_buffer(*compress::codec("top-k"), std::vector<float>(4, 1), {.fraction = 0.5});
      body.assign(right.bytes().begin(), right.bytes().end());
    }
    for (std::uint64_t changes = random.below(3); changes > 0 && !body.empty(); --changes)
      body[random.below(body.size())] = static_cast<std::byte>(random.below(256));
    num_rejected += compress::codec("top-k")->fits(body, 4) ? 0 : 1;
    request(0, static_cast<Sequence>(2 + i - num_rejected), RequestOp::kPush, wire::Buffer::of(body));
    owner.go_on();
  }
  EXPECT_GT(num_rejected, 1000U);
  EXPECT_LT(num_rejected, 2000U) << "some are right";
  EXPECT_EQ(owner.status().counts.rejected.at(ErrorKind::kMalformed), num_rejected);
  EXPECT_EQ(owner.report(7).version, 1 + 2000 - num_rejected);
}

TEST_F(OwnerTest, TickVisitsOnlyPartitionsWithPendingWork) {
  EXPECT_EQ(owner.num_ticking(), kPartitions) << "all have just got their roles";
  tell(TickEvent{});
  EXPECT_EQ(owner.num_ticking(), 0U);
  request(0, 1, RequestOp::kJoin);
  EXPECT_EQ(owner.num_ticking(), 1U);
  owner.go_on();
  tell(TickEvent{});
  EXPECT_EQ(owner.num_ticking(), 0U) << "it is acknowledged";
  facts.lease_until_ns = 0;
  request(0, 2, RequestOp::kPush, floats({1, 2, 3, 4}));
  owner.go_on();
  for (int i = 0; i < 3; ++i) tell(TickEvent{});
  EXPECT_EQ(owner.num_ticking(), 1U) << "nothing is stable without a lease, so it waits";
  EXPECT_EQ(num_answers(), 1U);
  facts.lease_until_ns = 1'000'000'000;
  tell(TickEvent{});
  EXPECT_EQ(owner.num_ticking(), 0U);
  EXPECT_EQ(num_answers(), 2U);
}

TEST_F(OwnerTest, MapVisitsChangedPartitionsUnlessWorkersFail) {
  tell(TickEvent{});
  MapEvent later = {.members = map.members, .self = kSelf, .partitions = {}};
  later.partitions.push_back({5, {.epoch = 2, .chain = {kSelf}}});
  tell(later);
  EXPECT_EQ(owner.num_ticking(), 1U);
  later.partitions.clear();
  later.has_lost_workers = true;
  tell(later);
  EXPECT_EQ(owner.num_ticking(), kPartitions);
}

/// The map that increases the epoch of partition 7 to 2.
MapEvent next_map(const MapEvent& map) {
  ClusterMap members = *map.members;
  members.version = 2;
  return {.members = std::make_shared<ClusterMap>(members),
          .self = kSelf,
          .partitions = {{7, {.epoch = 2, .chain = {kSelf}}}}};
}

TEST_F(OwnerTest, KeepsEarlyRequestsUntilTheirMap) {
  const auto join_early = [&] {
    tell(Request{.partition = 7,
                 .epoch = 2,
                 .life = {0, 1},
                 .registered_at = 1,
                 .sequence = 1,
                 .op = RequestOp::kJoin});
    owner.go_on();
  };
  join_early();
  join_early();
  EXPECT_EQ(num_answers(), 0U);
  const auto asks_for_the_map = [](const OwnerOutput& saying) {
    return std::holds_alternative<StaleMap>(saying);
  };
  EXPECT_TRUE(std::any_of(said.begin(), said.end(), asks_for_the_map));
  tell(next_map(map));
  owner.go_on();
  EXPECT_EQ(num_answers(), 1U) << "the second one is the first one again";
  EXPECT_EQ(owner.report(7).version, 1U);
}

TEST_F(OwnerTest, RejectsRequestsThatWaitTooLong) {
  tell(Request{
      .partition = 7, .epoch = 2, .life = {0, 1}, .registered_at = 1, .sequence = 1, .op = RequestOp::kJoin});
  tell(TickEvent{});
  EXPECT_EQ(num_answers(), 0U);
  facts.now_ns = [] { return std::int64_t{2'000'000'000}; };
  tell(TickEvent{});
  ASSERT_EQ(num_answers(), 1U);
  const auto reply = head_of<Reply>(std::get<PendingReply>(said.back()).message);
  EXPECT_EQ(reply->error, ErrorKind::kWrongEpoch);
  tell(next_map(map));
  owner.go_on();
  EXPECT_EQ(owner.report(7).version, 0U);
}

TEST_F(OwnerTest, LimitsRequestsKeptForMap) {
  std::vector<float> values(1 << 20);
  const int more_than_it_keeps = 100;  // of 4 MiB
  for (int i = 0; i < more_than_it_keeps; ++i)
    tell(Request{.partition = 7, .epoch = 2, .life = {0, 1}, .sequence = 1}, floats(values));
  owner.go_on();
  EXPECT_GT(num_answers(), 0U);
  EXPECT_LT(num_answers(), 100U);
}

TEST_F(OwnerTest, TickReportsStableVersions) {
  request(0, 1, RequestOp::kJoin);
  owner.go_on();
  said.clear();
  tell(TickEvent{});
  tell(TickEvent{});
  ASSERT_EQ(said.size(), 1U) << "once";
  const auto& versions = std::get<StableVersions>(said[0]).versions;
  ASSERT_EQ(versions.size(), 1U);
  EXPECT_EQ(versions[0].partition, 7U);
  EXPECT_EQ(versions[0].version, 1U);
  tell(MapEvent{.members = map.members, .self = kSelf, .partitions = {{7, {.epoch = 2, .chain = {2}}}}});
  const auto& gone = std::get<StableVersions>(said.back()).versions;
  EXPECT_EQ(gone.at(0).version, 0U) << "it is another server's now";
}

TEST_F(OwnerTest, RetriesMissingServerAndSendsEverythingLater) {
  for (auto& [id, entry] : map.partitions) entry = {.epoch = 2, .chain = {kSelf, 2}};
  tell(map);
  EXPECT_EQ(num_to_server(), 1U) << "4096 partitions call the same server";
  for (int i = 0; i < 20; ++i) {  // one second
    now_ns += 50'000'000;
    tell(TickEvent{});
  }
  EXPECT_GT(num_to_server(), 2U);
  EXPECT_LT(num_to_server(), 6U);
  said.clear();
  OwnerEvent connected(ConnectedEvent{});
  connected.server = 2;
  owner.take(connected);
  EXPECT_EQ(num_to_server(), kPartitions);
  OwnerEvent closed(ClosedEvent{});
  closed.server = 2;
  owner.take(closed);
  said.clear();
  now_ns += 1'000'000'000;
  tell(TickEvent{});
  EXPECT_EQ(num_to_server(), 1U) << "it has gone again";
}

}  // namespace
}  // namespace trireme::ps
