// The progress thread of a local group. It runs urgent operations at once and polls at intervals for
// operations without a waiting thread. Waking it costs a system call and a context switch; being found by a
// poll costs nothing. So short operations are left to the next poll, which finds none if their issuer waits
// for them.

#include <pthread.h>

#include <algorithm>

#include "trireme/base/clock.h"
#include "trireme/wire/local_group.h"

namespace trireme::wire {
namespace {

constexpr double kLook_s = 0.001;
/// Consecutive polls without newly issued operations before it sleeps until it is woken.
constexpr std::uint64_t kQuietLooks = 20;

}  // namespace

void LocalGroup::start_progress_thread() {
  if (progress_thread_.joinable() || stopping_) return;
  progress_thread_ = std::thread([this] { progress_loop(); });
  ::pthread_setname_np(progress_thread_.native_handle(), "trireme-shm");
}

void LocalGroup::wake_progress_thread() {
  wanted_.store(true);
  start_progress_thread();
  work_.notify_one();
  block_->ring(membership().rank);
}

/// Leaves unfinished operations to the progress thread, unless a thread waits for them before its next poll.
void LocalGroup::look_later() {
  if (queue_.empty() && messages_.empty()) return;
  asked_look_ = looks_;
  if (looking_) return;
  looking_ = true;
  start_progress_thread();
  work_.notify_one();
  block_->ring(membership().rank);
}

/// True if the first operation was there during a whole interval between two polls.
bool LocalGroup::left_alone(const std::deque<std::shared_ptr<Operation>>& operations) const {
  return !operations.empty() && looks_ >= operations.front()->issued_look_ + 2;
}

void LocalGroup::count_look() {
  const double now = now_s();
  if (now < next_look_s_) return;
  next_look_s_ = now + kLook_s;
  ++looks_;
  if (looks_ > asked_look_ + kQuietLooks) looking_ = false;
}

void LocalGroup::progress_loop() {
  Lock lock(mutex_);
  bool drives_messages = false;
  while (!stopping_) {
    const bool called = wanted_.exchange(false);
    if (called || (!running_ && left_alone(queue_))) run_collectives(lock);
    drives_messages = !messages_.empty() && (called || is_needed_for_messages(drives_messages));
    if (drives_messages)
      sleep_on_messages(lock);
    else
      sleep_until_called(lock);
    count_look();
  }
}

/// A thread that waits for a message advances all of them. Only large ones justify a second thread.
bool LocalGroup::is_needed_for_messages(bool drives_already) const {
  if (message_waiters_ == 0) return drives_already || left_alone(messages_);
  const auto large = [this](const auto& operation) { return begins_large(*operation); };
  return drives_already && std::any_of(messages_.begin(), messages_.end(), large);
}

void LocalGroup::run_collectives(Lock& lock) {
  while (!stopping_ && !queue_.empty()) {
    if (running_)
      // No deadline needed: the running thread has one, and attends to messages meanwhile.
      changed_.wait(lock, [this] { return !running_ || stopping_; });
    else
      run_first(lock, Patience::kBackground, limit_of(*queue_.front(), 0));
  }
}

void LocalGroup::sleep_until_called(Lock& lock) {
  const auto called = [this] { return stopping_ || wanted_.load(); };
  // No deadline needed: it waits for work and not for a rank. The destructor ends it.
  if (!looking_) work_.wait(lock, [&] { return called() || looking_; });
  work_.wait_for(lock, Seconds(kLook_s), called);
}

void LocalGroup::sleep_on_messages(Lock& lock) {
  const std::uint64_t before = message_activity();
  attend_messages(lock);
  if (stopping_ || messages_.empty()) return;
  const bool looking = looking_;
  const double max_s = looking ? kLook_s : kLookAfterPeers_s;
  lock.unlock();
  waiter_.sleep([&] { return wanted_.load() || message_activity() != before; }, max_s);
  lock.lock();
}

}  // namespace trireme::wire
