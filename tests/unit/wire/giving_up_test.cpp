// After a failed operation its tensors belong to their owner again. A rank that was delayed during the
// operation neither writes to them nor takes their later content for a result.

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tests/unit/wire/group_of_threads.h"
#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr std::size_t kCount = 40000;

/// Rank 1 of two, simulated by the test step by step. Rank 0 is real.
class PlayedRank {
 public:
  explicit PlayedRank(Tensors tensors) : tensors_(tensors) {
    for (int r = 0; r < 2; ++r) LocalGroup::enter(*memory_, r, 2);
    waiter_ = std::make_unique<Waiter>(block_, membership(1));
    if (tensors == Tensors::kAsProcesses) arena_ = std::make_shared<SharedArena>(block_, 1);
    collectives_ = std::make_unique<Collectives>(block_, *waiter_, arena_);
  }

  std::unique_ptr<LocalGroup> rank_0() { return std::make_unique<LocalGroup>(memory_, membership(0)); }
  const ControlBlock& block() const { return *block_; }
  Waiter& waiter() { return *waiter_; }
  Collectives& collectives() { return *collectives_; }

  float* allocate() {
    if (!arena_) return own_.data();
    return reinterpret_cast<float*>(arena_->allocate(kCount * sizeof(float)));
  }
  /// Posts an all_reduce and begins one block of it.
  void begin_all_reduce() {
    collectives_->post(call(allocate()), 1);
    block_->slot(1, 1).claimed.fetch_add(1);
    block_->counter(1, Counter::kWorking).store(1);
  }
  /// Ends the block late. It writes to the tensor of rank 0.
  void end_all_reduce() {
    const Descriptor& descriptor = block_->slot(0, 1).descriptor;
    std::byte* base = reinterpret_cast<std::byte*>(descriptor.offset);
    if (tensors_ == Tensors::kAsProcesses)
      base = peers_.segment(0, descriptor.segment, descriptor.generation) + descriptor.offset;
    std::fill_n(reinterpret_cast<float*>(base), kCount, 99.0F);
    block_->counter(1, Counter::kWorking).store(0);
  }
  void await_abort() {
    const Deadline deadline = Deadline::after_s(kTimeout_s);
    while (!block_->aborted() && !deadline.expired()) std::this_thread::yield();
    EXPECT_TRUE(block_->aborted());
  }

  static Call call(float* values, CallKind kind = CallKind::kAllReduce) {
    return {.kind = kind,
            .element = Element::kF32,
            .root = kind == CallKind::kBroadcast ? 0 : -1,
            .count = kCount,
            .input = bytes(values),
            .output = bytes(values)};
  }

 private:
  Membership membership(int rank) const {
    return {.rank = rank,
            .size = 2,
            .rank_names = {},
            .ranks_on_cores = 2,
            .threads_of_one_process = tensors_ == Tensors::kAddressed};
  }

  const Tensors tensors_;
  std::shared_ptr<SharedMemory> memory_ =
      SharedMemory::create_in_process(ControlBlock::bytes(BlockLayout::for_size(2)));
  std::shared_ptr<const ControlBlock> block_ =
      std::make_shared<const ControlBlock>(memory_, BlockLayout::for_size(2));
  std::unique_ptr<Waiter> waiter_;
  std::shared_ptr<SharedArena> arena_;
  std::unique_ptr<Collectives> collectives_;
  PeerMemory peers_{block_};
  std::vector<float> own_ = std::vector<float>(kCount, 1.0F);
};

TEST(LocalGroupGivingUp, LateProcessWritesNothingAfterAbandonment) {
  PlayedRank peer(Tensors::kAsProcesses);
  const auto group = peer.rank_0();
  auto* block = reinterpret_cast<float*>(group->arena()->allocate(3 * kCount * sizeof(float)));
  std::fill_n(block, 3 * kCount, 5.0F);
  float* values = block + kCount;  // its neighbors share pages with it
  peer.begin_all_reduce();
  const auto operation = group->issue(PlayedRank::call(values), Issue::kSync, 0.2);
  EXPECT_THROW(group->wait(*operation), CommError);
  std::fill_n(values, kCount, 7.0F);
  peer.end_all_reduce();
  EXPECT_THAT(std::vector<float>(values, values + kCount), Each(7.0F));
  EXPECT_THAT(std::vector<float>(block, block + kCount), Each(5.0F));
  EXPECT_THAT(std::vector<float>(values + kCount, values + 2 * kCount), Each(5.0F));
}

TEST(LocalGroupGivingUp, ThreadInAbandonedAllReduceIsAwaited) {
  PlayedRank peer(Tensors::kAddressed);
  const auto group = peer.rank_0();
  auto values = std::make_unique<std::vector<float>>(kCount, 5.0F);
  peer.begin_all_reduce();
  std::atomic<bool> ended{false};
  std::thread straggler([&] {
    peer.await_abort();
    std::this_thread::sleep_for(Seconds(0.05));
    ended = true;
    peer.end_all_reduce();
  });
  const auto operation = group->issue(PlayedRank::call(values->data()), Issue::kSync, 0.2);
  EXPECT_TRUE(ended) << "the operation ended while another thread worked on its tensor";
  EXPECT_THROW(group->wait(*operation), CommError);
  straggler.join();
}

TEST(LocalGroupGivingUp, LeavingAwaitsThreadsInPendingOperations) {
  PlayedRank peer(Tensors::kAddressed);
  const auto group = peer.rank_0();
  std::vector<float> values(kCount, 5.0F);
  peer.begin_all_reduce();
  group->issue(PlayedRank::call(values.data()), Issue::kAsync, kTimeout_s);
  std::atomic<bool> ended{false};
  std::thread straggler([&] {
    peer.await_abort();
    ended = true;
    peer.end_all_reduce();
  });
  group->shutdown();
  EXPECT_TRUE(ended) << "the group was left while another thread worked on a tensor";
  straggler.join();
  EXPECT_THAT(peer.block().abort_cause(), HasSubstr("all_reduce #1 of group world: rank 0 has left"));
}

TEST(LocalGroupGivingUp, LateReadAfterGivingUpIsInvalid) {
  for (const CallKind kind : {CallKind::kAllReduce, CallKind::kBroadcast}) {
    PlayedRank peer(Tensors::kAddressed);
    const auto block = std::make_shared<const ControlBlock>(peer.block());
    Waiter rank_0(block, Membership{.rank = 0, .size = 2, .rank_names = {}, .threads_of_one_process = true});
    Collectives theirs(block, rank_0, nullptr);
    std::vector<float> abandoned(kCount, 3.0F);
    std::vector<float> values(kCount, 1.0F);
    // While rank 1 waits for rank 0, this work aborts the operation for rank 0.
    peer.waiter().set_idle_work([&] {
      if (block->aborted()) return;
      block->abort("rank 0 gave up");
      theirs.post(PlayedRank::call(abandoned.data(), kind), 1);
    });
    const Call call = PlayedRank::call(values.data(), kind);
    peer.collectives().post(call, 1);
    const Wait wait{Deadline::after_s(kTimeout_s), kTimeout_s, Patience::kForeground, [] { return "it"; }};
    EXPECT_THROW(peer.collectives().run(call, 1, wait), CommError) << name(kind);
    EXPECT_THAT(abandoned, Each(3.0F)) << name(kind);
  }
}

}  // namespace
}  // namespace trireme::wire
