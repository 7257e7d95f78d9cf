// Posted operations make progress, whatever the thread that issued them does next: it waits for another
// operation, computes, or polls.

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tests/unit/wire/group_of_threads.h"
#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

using testing::Each;

/// Around the sizes at which the engine changes its method: slot, staging, background, mailbox.
constexpr std::size_t kBytes[] = {400, 20 << 10, 64 << 10, 100 << 10, 300 << 10};

Transfer message_of(Transfer::Direction direction, int peer, std::vector<float>& values) {
  return {direction, peer, Element::kF32, values.size(), 0, bytes(values.data())};
}

void send(LocalGroup& group, int peer, std::vector<float>& values) {
  group.wait(*group.issue(message_of(Transfer::Direction::kSend, peer, values), Issue::kSync, kTimeout_s));
}

void receive(LocalGroup& group, int peer, std::vector<float>& values) {
  group.wait(*group.issue(message_of(Transfer::Direction::kReceive, peer, values), Issue::kSync, kTimeout_s));
}

void barrier(LocalGroup& group) {
  group.wait(*group.issue(Call{.kind = CallKind::kBarrier}, Issue::kSync, kTimeout_s));
}

/// Simulates a rank that computes: it does nothing for the group until the flag is set.
void stay_away_until(const std::atomic<bool>& flag) {
  const Deadline deadline = Deadline::after_s(kTimeout_s);
  while (!flag && !deadline.expired()) std::this_thread::sleep_for(Seconds(0.001));
  require(flag, "nothing happened");
}

Call call_of(CallKind kind, std::vector<float>& values) {
  Call call = all_reduce_call(values, Element::kF32);
  call.kind = kind;
  if (kind == CallKind::kBroadcast) call.root = 0;
  return call;
}

/// Both kinds of memory, two kinds of collectives, all sizes.
void for_each_way(const std::function<void(LocalGroup&, int, CallKind, std::size_t)>& body) {
  for (const Tensors tensors : {Tensors::kAddressed, Tensors::kAsProcesses})
    for (const CallKind kind : {CallKind::kAllReduce, CallKind::kBroadcast})
      for (const std::size_t size : kBytes)
        EXPECT_THAT(
            run_ranks(
                2, [&](LocalGroup& group, int rank) { body(group, rank, kind, size / sizeof(float)); },
                tensors),
            Each(""))
            << name(kind) << " of " << size << " bytes, "
            << (tensors == Tensors::kAddressed ? "addressed" : "as processes");
}

TEST(LocalGroupProgress, CollectiveContinuesDuringMessageWait) {
  for_each_way([](LocalGroup& group, int rank, CallKind kind, std::size_t count) {
    std::vector<float> values(count, 1.0F);
    std::vector<float> token(1, 5.0F);
    const auto mode = rank == 0 ? Issue::kAsync : Issue::kSync;
    const auto operation = group.issue(call_of(kind, values), mode, kTimeout_s);
    if (rank == 0) receive(group, 1, token);
    group.wait(*operation);
    if (rank == 1) send(group, 0, token);
    require(values[count - 1] == (kind == CallKind::kAllReduce ? 2.0F : 1.0F), "wrong value");
  });
}

TEST(LocalGroupProgress, ACollectiveContinuesWhileItsIssuerComputes) {
  std::atomic<bool> arrived{false};
  for_each_way([&](LocalGroup& group, int rank, CallKind kind, std::size_t count) {
    std::vector<float> values(count, 1.0F);
    if (rank == 0) arrived = false;
    barrier(group);
    const auto mode = rank == 0 ? Issue::kAsync : Issue::kSync;
    const auto operation = group.issue(call_of(kind, values), mode, kTimeout_s);
    if (rank == 0) stay_away_until(arrived);
    group.wait(*operation);
    arrived = true;
  });
}

TEST(LocalGroupProgress, EndsAnOperationThatNobodyWaitsFor) {
  for_each_way([&](LocalGroup& group, int, CallKind kind, std::size_t count) {
    auto values = std::make_shared<std::vector<float>>(count, 1.0F);
    const auto operation = group.issue(call_of(kind, *values), Issue::kAsync, kTimeout_s, values);
    const Deadline deadline = Deadline::after_s(kTimeout_s);
    while (!operation->done() && !deadline.expired()) std::this_thread::sleep_for(Seconds(0.001));
    require(operation->done() && !operation->error(), "not done");
    barrier(group);
  });
}

TEST(LocalGroupProgress, CompletionQueryNeverWaits) {
  constexpr std::size_t kCount = 16 << 10;
  const auto memory = SharedMemory::create_in_process(ControlBlock::bytes(BlockLayout::for_size(2)));
  for (int r = 0; r < 2; ++r) LocalGroup::enter(*memory, r, 2);
  const auto membership = [](int rank) { return Membership{.rank = rank, .size = 2, .rank_names = {}}; };
  LocalGroup group(memory, membership(0));
  // Rank 1 has posted its part, and then is inactive for a while.
  const auto block = std::make_shared<const ControlBlock>(memory, BlockLayout::for_size(2));
  Waiter waiter(block, membership(1));
  Collectives peer(block, waiter, nullptr);
  std::vector<float> theirs(kCount, 1.0F);
  peer.post(all_reduce_call(theirs, Element::kF32), 1);

  std::vector<float> values(kCount, 2.0F);
  const auto operation = group.issue(all_reduce_call(values, Element::kF32), Issue::kAsync, kTimeout_s);
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(group.poll(*operation)) << "rank 1 has not done its part";
  peer.run(all_reduce_call(theirs, Element::kF32), 1,
           {Deadline::after_s(kTimeout_s), kTimeout_s, Patience::kForeground, [] { return "the sum"; }});
  group.wait(*operation);
  EXPECT_EQ(values, theirs);
}

TEST(LocalGroupProgress, PostedReceivesDrainDuringOtherGroup) {
  constexpr std::size_t kCount = 10 << 10;  // three of them are more than the mailbox holds
  const auto memory = SharedMemory::create_in_process(ControlBlock::bytes(BlockLayout::for_size(2)));
  for (int r = 0; r < 2; ++r) LocalGroup::enter(*memory, r, 2);
  const auto errors = run_ranks(2, [&](LocalGroup& first, int rank) {
    LocalGroup second(memory, first.membership());
    std::vector<std::vector<float>> values(3, std::vector<float>(kCount, static_cast<float>(rank)));
    std::vector<std::shared_ptr<Operation>> receives;
    if (rank == 0) {
      for (auto& each : values)
        receives.push_back(
            first.issue(message_of(Transfer::Direction::kReceive, 1, each), Issue::kAsync, kTimeout_s));
    }
    barrier(second);
    for (auto& each : values)
      if (rank == 1) send(first, 0, each);
    barrier(second);
    for (const auto& each : receives) first.wait(*each);
    for (const auto& each : values) require(each == std::vector<float>(kCount, 1.0F), "wrong values");
    barrier(second);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace trireme::wire
