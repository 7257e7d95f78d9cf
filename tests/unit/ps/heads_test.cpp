// Properties of decoding, over all kinds of messages. An encoded value is decoded to itself. Truncated or
// changed bytes are rejected, or are another value of the kind. No allocation depends on a claimed length
// alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "tests/unit/ps/allocations.h"
#include "tests/unit/ps/made_up.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/status.h"

namespace trireme::ps {
namespace {

constexpr int kRounds = 2000;

template <class Struct>
class Decoded : public testing::Test {
 protected:
  /// Decodes exactly these bytes, in memory that ends with them, and checks the largest allocation.
  static std::optional<Struct> look(const std::vector<std::byte>& bytes) {
    const std::unique_ptr<std::byte[]> exactly(new std::byte[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), exactly.get());
    largest_allocation() = 0;
    std::optional<Struct> value = wire::decode<Struct>(std::span(exactly.get(), bytes.size()));
    // The smallest element of a list has one byte in a message, and the largest has 250 in memory.
    EXPECT_LE(largest_allocation(), 512 * (bytes.size() + 1));
    return value;
  }
};

using Structs =
    testing::Types<Heartbeat, HeartbeatReply, CreateTable, TableCreated, Ping, Pong, CaughtUp, Drained,
                   Suspect, Request, Reply, Pull, PullReply, Replicate, ReplicateAck, SnapshotPart,
                   SnapshotAck, Status, StatusReply, BeginAnew, MapChange, LogRecord, ClusterStatus,
                   ServerStatus, SavedPart, PartHeader, CheckpointManifest>;
TYPED_TEST_SUITE(Decoded, Structs);

TYPED_TEST(Decoded, ComesBackAsItWas) {
  MakesUp makes_up(1);
  for (int round = 0; round < kRounds / 10; ++round) {
    const std::vector<std::byte> bytes = wire::encode(makes_up.one<TypeParam>());
    const auto value = this->look(bytes);
    ASSERT_TRUE(value.has_value());
    EXPECT_EQ(wire::encode(*value), bytes);
  }
}

TYPED_TEST(Decoded, IsRejectedWhenCutOrLengthened) {
  MakesUp makes_up(2);
  std::vector<std::byte> bytes = wire::encode(makes_up.one<TypeParam>());
  bytes.push_back({});
  EXPECT_FALSE(this->look(bytes).has_value());
  bytes.pop_back();
  while (!bytes.empty()) {
    bytes.pop_back();
    EXPECT_FALSE(this->look(bytes).has_value()) << bytes.size();
  }
}

TYPED_TEST(Decoded, IsRejectedOrValidWhenChanged) {
  MakesUp makes_up(3);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<std::byte> bytes = makes_up.mutated(wire::encode(makes_up.one<TypeParam>()));
    const auto value = this->look(bytes);
    if (!value) continue;
    // Duplicate keys of a map are joined.
    const std::vector<std::byte> again = wire::encode(*value);
    EXPECT_LE(again.size(), bytes.size());
    EXPECT_EQ(wire::encode(*this->look(again)), again);
  }
}

TYPED_TEST(Decoded, TakesMemoryForPresentBytesOnly) {
  MakesUp makes_up(4);
  for (int round = 0; round < kRounds; ++round) this->look(makes_up.bytes(300));
  // Sets each possible position of a count to about four billion.
  const std::vector<std::byte> whole = wire::encode(makes_up.one<TypeParam>());
  for (std::size_t at = 0; at + 4 <= whole.size(); ++at) {
    std::vector<std::byte> bytes = whole;
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), 4, std::byte{255});
    this->look(bytes);
  }
}

TEST(Heads, OfAllKindsAreLookedAtHere) {
  std::set<MessageKind> kinds = {MessageKind::kMapChange};  // a body
  for_each_head([&]<class Head>() { kinds.insert(Head::kKind); });
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(MessageKind::kLast));
}

TEST(Heads, MatchKindOfTheirMessage) {
  MakesUp makes_up(5);
  for (int round = 0; round < kRounds; ++round) {
    const wire::Message message = {.kind = static_cast<std::uint16_t>(makes_up.random().below(30)),
                                   .head = makes_up.bytes(100)};
    for_each_head([&]<class Head>() {
      const bool is_other = message.kind != static_cast<std::uint16_t>(Head::kKind);
      EXPECT_FALSE(is_other && head_of<Head>(message).has_value());
    });
  }
}

}  // namespace
}  // namespace trireme::ps
