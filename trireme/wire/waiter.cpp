#include "trireme/wire/waiter.h"

#include <sched.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/wire/futex.h"

namespace trireme::wire {
namespace {

constexpr int kYields = 60;
// The kernel closes the files of an ending process before it reports the end.
constexpr double kPatienceWithEnd_s = 2;

}  // namespace

int Membership::rank_name(int r) const {
  return rank_names.empty() ? r : rank_names[static_cast<std::size_t>(r)];
}

Waiter::Waiter(std::shared_ptr<const ControlBlock> block, Membership membership)
    : block_(std::move(block)),
      membership_(std::move(membership)),
      core_for_each_(membership_.ranks_on_cores <= available_cores()) {
  for (int r = 0; r < membership_.size; ++r)
    peers_.push_back(std::make_unique<PeerProcess>(block_->rank(r).pid.load()));
}

void Waiter::stop() {
  stopped_.store(true);
  RankArea& mine = block_->rank(membership_.rank);
  mine.doorbell.fetch_add(1);
  futex_wake_all(mine.doorbell);
}

void Waiter::advance(Counter which, std::uint64_t value) {
  block_->counter(membership_.rank, which).store(value);
  if (all_reached(which, value)) ring_all();
}

bool Waiter::all_reached(Counter which, std::uint64_t value) const {
  for (int r = 0; r < membership_.size; ++r)
    if (block_->counter(r, which).load() < value) return false;
  return true;
}

void Waiter::wait_all(Counter which, std::uint64_t value, const Wait& wait) {
  const auto missing = [&](int r) { return block_->counter(r, which).load() < value; };
  // Arrival is permanent: wait for each rank in turn.
  int next = 0;
  const auto ready = [&] {
    while (next < membership_.size && !missing(next)) ++next;
    return next == membership_.size;
  };
  wait_until(wait, ready, missing);
}

void Waiter::ring_all() const {
  for (int r = 0; r < membership_.size; ++r)
    if (r != membership_.rank) block_->ring(r);
}

void Waiter::fail(const std::string& cause) const {
  block_->abort(cause);
  throw block_->abort_error(membership_.group_name);
}

void Waiter::throw_if_aborted() const {
  if (block_->aborted()) throw block_->abort_error(membership_.group_name);
}

void Waiter::throw_if_over() const {
  throw_if_aborted();
  if (stopped_.load())
    throw CommError(text("group ", membership_.group_name, " has been shut down on rank ",
                         membership_.rank_name(membership_.rank)));
}

void Waiter::sleep(const std::function<bool()>& ready, double max_s) const {
  RankArea& mine = block_->rank(membership_.rank);
  const std::uint32_t before = mine.doorbell.load();
  mine.sleepers.fetch_add(1);
  if (!ready() && !block_->aborted() && !stopped_.load()) futex_wait(mine.doorbell, before, max_s);
  mine.sleepers.fetch_sub(1);
}

void Waiter::wait_long(const Wait& wait, const std::function<bool()>& ready,
                       const std::function<bool(int)>& missing) {
  const bool foreground = wait.patience == Patience::kForeground || urgent_.load(std::memory_order_relaxed);
  for (int i = 0; foreground && i < kYields; ++i) {
    ::sched_yield();
    if (ready()) return;
    if (idle_work_ && i % 16 == 15) idle_work_();
  }
  double look_at_s = now_s() + kLookAfterPeers_s;
  while (!ready()) {
    throw_if_over();
    if (idle_work_) idle_work_();
    sleep(ready, std::min(kLookAfterPeers_s, wait.deadline.remaining_s() + 1e-3));
    if (now_s() < look_at_s && !wait.deadline.expired()) continue;
    check(wait, ready, missing);
    look_at_s = now_s() + kLookAfterPeers_s;
  }
}

void Waiter::check(const Wait& wait, const std::function<bool()>& ready,
                   const std::function<bool(int)>& missing) {
  const std::string dead = find_dead(missing);
  // A rank may arrive and then end normally: its data is there.
  if (ready()) return;
  throw_if_over();
  if (!dead.empty()) fail(text(wait.what(), ": ", dead));
  if (!wait.deadline.expired()) return;
  fail(text(wait.what(), ": ", describe_missing(missing), " did not arrive within ",
            human_duration(wait.timeout_s)));
}

std::string Waiter::find_dead(const std::function<bool(int)>& missing) const {
  for (int r = 0; r < membership_.size; ++r) {
    if (r == membership_.rank || !missing(r)) continue;
    const std::string who =
        text("rank ", membership_.rank_name(r), " (pid ", block_->rank(r).pid.load(), ")");
    if (block_->rank(r).left.load() != 0) return who + " has left the group";
    if (!membership_.threads_of_one_process && peers_[static_cast<std::size_t>(r)]->dead())
      return who + " died";
  }
  return "";
}

std::string Waiter::find_end_of(int r) const {
  if (!membership_.threads_of_one_process)
    peers_[static_cast<std::size_t>(r)]->ends_within(kPatienceWithEnd_s);
  return find_dead([r](int each) { return each == r; });
}

std::string Waiter::describe_missing(const std::function<bool(int)>& missing) const {
  std::vector<std::string> found;
  for (int r = 0; r < membership_.size; ++r) {
    if (r == membership_.rank || !missing(r)) continue;
    const std::string state =
        membership_.threads_of_one_process
            ? "a thread of this process"
            : text("pid ", block_->rank(r).pid.load(), ", ", peers_[static_cast<std::size_t>(r)]->state());
    found.push_back(text("rank ", membership_.rank_name(r), " (", state, ")"));
  }
  return found.empty() ? "a rank" : join(found);
}

}  // namespace trireme::wire
