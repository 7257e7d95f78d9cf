// Every collective compared with its definition, with ranks as threads: the elements with which each rank
// ends.

#include "trireme/wire/collectives.h"

#include <gmock/gmock.h>

#include "tests/unit/wire/group_of_threads.h"
#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

using testing::Each;
using Values = std::vector<std::int32_t>;

/// Element i of part p of rank r's input.
std::int32_t element(int rank, int part, std::size_t i) {
  return static_cast<std::int32_t>(rank * 1000003 + part * 10007 + static_cast<int>(i));
}

Values input_of(int rank, int parts, std::size_t count) {
  Values values;
  for (int p = 0; p < parts; ++p)
    for (std::size_t i = 0; i < count; ++i) values.push_back(element(rank, p, i));
  return values;
}

/// Inputs small enough for the slot, for one staging piece, for many.
constexpr std::size_t kCounts[] = {0, 1, 1000, 30001, 200001};

/// The memory layout of the input: contiguous, or a list of parts (which goes through staging).
enum class Form { kWhole, kList };

/// Runs the call on every rank. `check` gets the rank's output.
void expect_collective(
    CallKind kind, int root, const std::function<int(int rank, int size)>& num_inputs,
    const std::function<int(int rank, int size)>& num_outputs,
    const std::function<std::int32_t(int rank, int size, int part, std::size_t i)>& expected) {
  for (const Form form : {Form::kWhole, Form::kList}) {
    for (const int size : {1, 2, 3, 5}) {
      for (const std::size_t count : kCounts) {
        const auto errors = run_ranks(size, [&](LocalGroup& group, int rank) {
          const int in = num_inputs(rank, size);
          const int out = num_outputs(rank, size);
          Values input = input_of(rank, in, count);
          Values output(static_cast<std::size_t>(out) * count, -1);
          Call call{
              .kind = kind, .element = Element::kI32, .root = root < 0 ? -1 : root % size, .count = count};
          if (form == Form::kWhole) {
            call.input = bytes(input.data());
            call.output = bytes(output.data());
          } else {
            for (int p = 0; p < in; ++p)
              call.input_parts.push_back(bytes(input.data() + static_cast<std::size_t>(p) * count));
            for (int p = 0; p < out; ++p)
              call.output_parts.push_back(bytes(output.data() + static_cast<std::size_t>(p) * count));
            if (out == 1) call.output = bytes(output.data());
          }
          group.wait(*group.issue(call, Issue::kSync, kTimeout_s));
          Values right;
          for (int p = 0; p < out; ++p)
            for (std::size_t i = 0; i < count; ++i) right.push_back(expected(rank, size, p, i));
          require(output == right, "rank ", rank, " has other values");
        });
        EXPECT_THAT(errors, Each("")) << name(kind) << ", " << size << " ranks, " << count << " elements";
      }
    }
  }
}

int one(int, int) { return 1; }
int all(int, int size) { return size; }
std::function<int(int, int)> on(int root, bool everything) {
  return [=](int rank, int size) { return rank == root % size ? (everything ? size : 1) : 0; };
}

TEST(Collectives, AllGatherCollectsInputsInRankOrder) {
  expect_collective(CallKind::kAllGather, -1, one, all,
                    [](int, int, int part, std::size_t i) { return element(part, 0, i); });
}

TEST(Collectives, AllToAllTransposesParts) {
  expect_collective(CallKind::kAllToAll, -1, all, all,
                    [](int rank, int, int part, std::size_t i) { return element(part, rank, i); });
}

TEST(Collectives, ReduceScatterGivesPartsOfSum) {
  expect_collective(CallKind::kReduceScatter, -1, all, one, [](int rank, int size, int, std::size_t i) {
    std::int32_t sum = 0;
    for (int r = 0; r < size; ++r) sum += element(r, rank, i);
    return sum;
  });
}

TEST(Collectives, GatherCollectsEveryInputOnTheRoot) {
  expect_collective(CallKind::kGather, 4, one, on(4, true),
                    [](int, int, int part, std::size_t i) { return element(part, 0, i); });
}

TEST(Collectives, ScatterGivesPartsOfRoot) {
  expect_collective(CallKind::kScatter, 3, on(3, true), one,
                    [](int rank, int size, int, std::size_t i) { return element(3 % size, rank, i); });
}

TEST(Collectives, ReduceGivesTheRootTheSum) {
  expect_collective(CallKind::kReduce, 1, one, on(1, false), [](int, int size, int, std::size_t i) {
    std::int32_t sum = 0;
    for (int r = 0; r < size; ++r) sum += element(r, 0, i);
    return sum;
  });
}

TEST(Collectives, BroadcastGivesTensorOfRootInPlace) {
  for (const int size : {1, 2, 3, 5}) {
    for (const std::size_t count : kCounts) {
      const int root = size - 1;
      const auto errors = run_ranks(size, [&](LocalGroup& group, int rank) {
        Values values = input_of(rank, 1, count);
        const Call call{.kind = CallKind::kBroadcast,
                        .element = Element::kI32,
                        .root = root,
                        .count = count,
                        .input = bytes(values.data()),
                        .output = bytes(values.data())};
        group.wait(*group.issue(call, Issue::kSync, kTimeout_s));
        require(values == input_of(root, 1, count), "rank ", rank, " has other values");
      });
      EXPECT_THAT(errors, Each("")) << size << " ranks, " << count << " elements";
    }
  }
}

/// Rank s sends (s + 1) * (d + 2) * scale elements to rank d.
std::vector<std::uint64_t> unequal_offsets(int rank, int size, std::size_t scale, bool outgoing) {
  std::vector<std::uint64_t> offsets(1, 0);
  for (int other = 0; other < size; ++other) {
    const int from = outgoing ? rank : other;
    const int to = outgoing ? other : rank;
    offsets.push_back(offsets.back() + static_cast<std::uint64_t>((from + 1) * (to + 2)) * scale);
  }
  return offsets;
}

TEST(Collectives, AllToAllTakesUnequalParts) {
  constexpr int kSize = 3;
  for (const std::size_t scale : {0UL, 1UL, 5000UL, 40000UL}) {
    const auto errors = run_ranks(kSize, [&](LocalGroup& group, int rank) {
      Call call{.kind = CallKind::kAllToAll, .element = Element::kI32};
      call.input_offsets = unequal_offsets(rank, kSize, scale, true);
      call.output_offsets = unequal_offsets(rank, kSize, scale, false);
      Values input(call.input_offsets.back());
      Values output(call.output_offsets.back());
      for (std::size_t d = 0; d < kSize; ++d)
        for (std::uint64_t i = call.input_offsets[d]; i < call.input_offsets[d + 1]; ++i)
          input[i] = element(rank, static_cast<int>(d), i - call.input_offsets[d]);
      call.input = bytes(input.data());
      call.output = bytes(output.data());
      group.wait(*group.issue(call, Issue::kSync, kTimeout_s));
      for (std::size_t s = 0; s < kSize; ++s)
        for (std::uint64_t i = call.output_offsets[s]; i < call.output_offsets[s + 1]; ++i)
          require(output[i] == element(static_cast<int>(s), rank, i - call.output_offsets[s]), "element ", i);
    });
    EXPECT_THAT(errors, Each("")) << scale;
  }
}

TEST(Collectives, AllToAllNamesBothMismatchedSides) {
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    Values input(10);
    Values output(10);
    Call call{.kind = CallKind::kAllToAll, .element = Element::kI32};
    call.input = bytes(input.data());
    call.output = bytes(output.data());
    call.input_offsets = {0, 4, 10};
    call.output_offsets =
        rank == 0 ? std::vector<std::uint64_t>{0, 4, 8} : std::vector<std::uint64_t>{0, 5, 10};
    group.wait(*group.issue(call, Issue::kSync, kTimeout_s));
  });
  EXPECT_THAT(errors, Each("all_to_all #1 of group world: rank 0 sends 6 i32 to rank 1, which expects 5"));
}

TEST(Collectives, BarrierHoldsEverybodyUntilTheLastArrives) {
  std::atomic<int> arrived{0};
  const auto errors = run_ranks(4, [&](LocalGroup& group, int rank) {
    arrived.fetch_add(1);
    group.wait(*group.issue(Call{.kind = CallKind::kBarrier}, Issue::kSync, kTimeout_s));
    require(arrived.load() == 4, "rank ", rank, " passed before all had arrived");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Collectives, DifferentOperationsNameBothSides) {
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    Values values(8);
    Call call{.kind = rank == 0 ? CallKind::kAllReduce : CallKind::kBroadcast, .element = Element::kI32};
    call.root = rank == 0 ? -1 : 0;
    call.count = 8;
    call.input = bytes(values.data());
    call.output = bytes(values.data());
    group.wait(*group.issue(call, Issue::kSync, kTimeout_s));
  });
  EXPECT_THAT(errors, Each("all_reduce #1 of group world: rank 0 issues all_reduce of 8 i32, rank 1 issues "
                           "broadcast of 8 i32 with root 0"));
}

}  // namespace
}  // namespace trireme::wire
