// The comparison of the operations that ranks have issued, without ranks: its text form, the ranks that are
// needed, the fields that must match, and the error messages.
#include "trireme/comm/internal/operation_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "trireme/base/text.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Optional;

using State = OperationRecord::State;

Operation all_reduce_of(std::int64_t numel, at::ScalarType dtype = at::kFloat) {
  Operation operation;
  operation.number = 7;
  operation.order = 5;
  operation.kind = OperationKind::kAllReduce;
  operation.dtype = dtype;
  operation.numel = numel;
  return operation;
}

Operation to_root(OperationKind kind, int root) {
  Operation operation = all_reduce_of(64);
  operation.kind = kind;
  operation.peer = root;
  return operation;
}

/// A send to, or a receive from, `peer`: number `order` with it.
Operation message(OperationKind kind, int peer, std::uint64_t order = 5) {
  Operation operation = to_root(kind, peer);
  operation.order = order;
  return operation;
}

Operation barrier() {
  Operation operation = all_reduce_of(0, at::ScalarType::Undefined);
  operation.kind = OperationKind::kBarrier;
  return operation;
}

Operation coalesced(std::int64_t num_pairs, const std::string& layout) {
  Operation operation = all_reduce_of(num_pairs, at::ScalarType::Undefined);
  operation.kind = OperationKind::kAllToAllCoalesced;
  operation.layout = layout;
  return operation;
}

void expect_same(const Operation& found, const Operation& expected) {
  EXPECT_EQ(found.number, expected.number);
  EXPECT_EQ(found.order, expected.order);
  EXPECT_EQ(found.kind, expected.kind);
  EXPECT_EQ(found.dtype, expected.dtype);
  EXPECT_EQ(found.numel, expected.numel);
  EXPECT_EQ(found.peer, expected.peer);
  EXPECT_EQ(found.reduce, expected.reduce);
  EXPECT_EQ(found.layout, expected.layout);
  EXPECT_EQ(found.state, expected.state);
}

TEST(OperationText, ComesBackWithEveryField) {
  Operation large = message(OperationKind::kSend, 1023, std::numeric_limits<std::uint64_t>::max());
  large.number = std::numeric_limits<std::uint64_t>::max() - 1;
  large.numel = std::numeric_limits<std::int64_t>::max();
  large.dtype = at::kBFloat16;
  large.state = State::kFailed;
  Operation product = all_reduce_of(3, at::kLong);
  product.reduce = ReduceOp::kProduct;
  product.state = State::kDone;
  const std::vector<Operation> operations = {large, product, barrier(), coalesced(3, "f32*2,i64")};
  const auto decoded = decode_operations(encode_operations(operations), 1024).value();
  ASSERT_EQ(decoded.size(), operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(decoded[i], operations[i]);
  }
}

TEST(OperationText, OfNothingIsNothing) {
  EXPECT_EQ(encode_operations({}), "");
  EXPECT_THAT(decode_operations("", 4), Optional(IsEmpty()));
}

TEST(OperationText, RejectsMalformedText) {
  const std::string whole = encode_operations({all_reduce_of(100), barrier()});
  for (const std::string& foreign :
       {std::string("rank 3"), std::string("\n"), std::string("1 2 3\n"), whole + "x", whole + "1 2\n",
        text("1 2 99 6 4 -1 0 0 -\n"), text("1 2 0 999 4 -1 0 0 -\n"), text("1 2 0 6 4 -1 9 0 -\n"),
        text("1 2 0 6 4 -1 0 9 -\n"), text("1 2 0 6 1e9 -1 0 0 -\n"),
        text("1 2 0 6 99999999999999999999 -1 0 0 -\n"), text("1 2 0 6 4 4 0 0 -\n"),
        text("1 2 0 6 4 -2 0 0 -\n"), text("1 2 0 6 4 -1 0 0\n"), text("1 2 0 6 4 -1 0 0 f32\x1b[2J\n"),
        text("1 2 0 6 4 -1 0 0 ", std::string(5000, 'f'), "\n")}) {
    EXPECT_EQ(decode_operations(foreign, 4), std::nullopt) << "'" << foreign << "'";
  }
}

TEST(OperationText, EveryTruncationOfALineIsRejected) {
  const std::string line = encode_operations({all_reduce_of(100)});
  for (std::size_t length = 1; length < line.size(); ++length) {
    EXPECT_EQ(decode_operations(line.substr(0, length), 4), std::nullopt) << length;
    EXPECT_EQ(decode_operations(line + line.substr(0, length), 4), std::nullopt) << length;
  }
}

TEST(RanksNeeded, CollectiveNeedsAllAndMessageItsPeer) {
  EXPECT_THAT(ranks_needed(all_reduce_of(1), 1, 4), ElementsAre(0, 2, 3));
  EXPECT_THAT(ranks_needed(to_root(OperationKind::kBroadcast, 3), 0, 4), ElementsAre(1, 2, 3));
  EXPECT_THAT(ranks_needed(barrier(), 0, 1), IsEmpty());
  EXPECT_THAT(ranks_needed(message(OperationKind::kSend, 3), 0, 4), ElementsAre(3));
  EXPECT_THAT(ranks_needed(message(OperationKind::kRecv, 2), 3, 4), ElementsAre(2));
}

TEST(Counterpart, CollectiveMatchesOperationAtSamePlace) {
  Operation earlier = all_reduce_of(10), same_place = barrier();
  earlier.order = 4;
  const std::vector<Operation> theirs = {earlier, same_place};
  EXPECT_EQ(counterpart(all_reduce_of(10), 0, theirs), &theirs[1]);
  Operation next = all_reduce_of(10);
  next.order = 6;
  EXPECT_EQ(counterpart(next, 0, theirs), nullptr);
}

TEST(Counterpart, SendMatchesItsReceive) {
  const std::vector<Operation> theirs = {
      all_reduce_of(64),                    // the same number, but as a collective
      message(OperationKind::kSend, 0),     // the other direction
      message(OperationKind::kRecv, 2),     // from another rank
      message(OperationKind::kRecv, 0, 4),  // an earlier one
      message(OperationKind::kRecv, 0),     //
  };
  EXPECT_EQ(counterpart(message(OperationKind::kSend, 1), 0, theirs), &theirs[4]);
  EXPECT_EQ(counterpart(message(OperationKind::kRecv, 1), 0, theirs), &theirs[1]);
  EXPECT_EQ(counterpart(message(OperationKind::kSend, 1, 6), 0, theirs), nullptr);
  EXPECT_EQ(counterpart(all_reduce_of(1), 0, theirs), &theirs[0]) << "no message is a collective's";
}

// The group's ranks 0, 1, 2 are the world's 4, 8, 15.
const std::vector<int> kWorldRanks = {4, 8, 15};

TEST(Disagreement, IsNoneForSameOrNoOperations) {
  const Operation ours = all_reduce_of(100);
  Operation done = ours;
  done.number = 90;
  done.state = State::kDone;
  EXPECT_EQ(find_disagreement(ours, 0, kWorldRanks, {}), "");
  EXPECT_EQ(find_disagreement(ours, 0, kWorldRanks, {{1, {}}, {2, {}}}), "");
  EXPECT_EQ(find_disagreement(ours, 0, kWorldRanks, {{1, {done}}, {2, {ours}}}), "");
  const Operation send = message(OperationKind::kSend, 2), recv = message(OperationKind::kRecv, 0);
  EXPECT_EQ(find_disagreement(send, 0, kWorldRanks, {{1, {barrier()}}, {2, {recv}}}), "");
}

struct Pair {
  const char* name;
  Operation ours;
  Operation theirs;
  const char* our_side;
  const char* their_side;
};

Operation with(ReduceOp op) {
  Operation operation = all_reduce_of(100);
  operation.reduce = op;
  return operation;
}

const Pair kPairs[] = {
    {"Size", all_reduce_of(100), all_reduce_of(200), "all_reduce of 100 f32 (sum)",
     "all_reduce of 200 f32 (sum)"},
    {"Dtype", all_reduce_of(100), all_reduce_of(100, at::kBFloat16), "all_reduce of 100 f32 (sum)",
     "all_reduce of 100 bf16 (sum)"},
    {"Kind", all_reduce_of(100), barrier(), "all_reduce of 100 f32 (sum)", "barrier"},
    {"Root", to_root(OperationKind::kBroadcast, 0), to_root(OperationKind::kBroadcast, 2),
     "broadcast of 64 f32 with root 4", "broadcast of 64 f32 with root 15"},
    {"Layout", coalesced(3, "f32*2,i64"), coalesced(3, "f32,i64*2"),
     "all_to_all_coalesced of 3 tensors (f32*2,i64)", "all_to_all_coalesced of 3 tensors (f32,i64*2)"},
    {"Pairs", coalesced(1, "f32"), coalesced(0, ""), "all_to_all_coalesced of 1 tensor (f32)",
     "all_to_all_coalesced of 0 tensors"},
    {"ReduceOp", with(ReduceOp::kAverage), with(ReduceOp::kMax), "all_reduce of 100 f32 (average)",
     "all_reduce of 100 f32 (max)"},
};

TEST(Disagreement, NamesBothSidesWithRanksOfWorld) {
  for (const Pair& pair : kPairs) {
    const std::string found =
        find_disagreement(pair.ours, 1, kWorldRanks, {{0, {pair.ours}}, {2, {pair.theirs}}});
    EXPECT_THAT(found, AllOf(HasSubstr(text("rank 4, 8 issued ", pair.our_side)),
                             HasSubstr(text("rank 15 issued ", pair.their_side)), HasSubstr("same order")))
        << pair.name;
  }
}

TEST(Disagreement, OfAMessageNamesSenderAndReceiver) {
  Operation recv = message(OperationKind::kRecv, 0);
  recv.numel = 65;
  EXPECT_THAT(find_disagreement(message(OperationKind::kSend, 2), 0, kWorldRanks, {{2, {recv}}}),
              AllOf(HasSubstr("rank 4 issued send of 64 f32 to rank 15"),
                    HasSubstr("rank 15 issued recv of 65 f32 from rank 4")));
}

TEST(Disagreement, LeavesUninvolvedRanksOut) {
  Operation recv = message(OperationKind::kRecv, 0);
  recv.dtype = at::kInt;
  EXPECT_THAT(find_disagreement(message(OperationKind::kSend, 2), 0, kWorldRanks,
                                {{1, {message(OperationKind::kRecv, 0)}}, {2, {recv}}}),
              Not(HasSubstr("rank 8")));
}

TEST(OperationReport, OperationsBeforeOldestRecordAreIssued) {
  Operation later = all_reduce_of(64);
  later.order = 6;
  EXPECT_TRUE(has_issued(all_reduce_of(64), 0, {later}));
  EXPECT_TRUE(has_finished(all_reduce_of(64), 0, {later}));
  EXPECT_FALSE(has_issued(later, 0, {all_reduce_of(64)}));
  EXPECT_FALSE(has_issued(all_reduce_of(64), 0, {message(OperationKind::kSend, 0, 6)}));
}

TEST(OperationReport, RankHasFinishedWithItsSide) {
  Operation send = message(OperationKind::kSend, 0);
  const Operation recv = message(OperationKind::kRecv, 1);
  EXPECT_TRUE(has_issued(recv, 0, {send}));
  EXPECT_FALSE(has_finished(recv, 0, {send}));
  send.state = State::kDone;
  EXPECT_TRUE(has_finished(recv, 0, {send}));
  EXPECT_FALSE(has_finished(recv, 2, {send})) << "it was for another rank";
}

TEST(OperationReport, MissingRanksHaveTheirNumbersInWorld) {
  const Published published{{1, {all_reduce_of(64)}}, {2, {}}};
  EXPECT_THAT(missing_ranks(all_reduce_of(64), 0, {10, 11, 12, 13}, published), ElementsAre(12, 13));
}

}  // namespace
}  // namespace trireme::comm
