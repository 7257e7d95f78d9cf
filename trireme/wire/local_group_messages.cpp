// Messages between two ranks of a local group. They advance whenever a thread of the rank enters the group.

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/wire/local_group.h"

namespace trireme::wire {

std::shared_ptr<Operation> LocalGroup::issue(const Transfer& message, Issue mode, double timeout_s,
                                             std::shared_ptr<void> keeps_alive) {
  auto operation = make_operation(timeout_s, std::move(keeps_alive));
  operation->message_ = message;
  operation->deadline_ = Deadline::after_s(timeout_s);
  Lock lock(mutex_);
  operation->number_ = ++last_message_;
  if (failure_) {
    finish(lock, {operation}, failure_);
    return operation;
  }
  operation->issued_look_ = looks_;
  messages_.push_back(operation);
  num_messages_.store(messages_.size());
  advance_messages(lock);
  if (operation->done()) return operation;
  if (mode == Issue::kSync)
    wait_message(lock, *operation, limit_of(*operation, 0));
  else if (begins_large(*operation))
    wake_progress_thread();
  else
    look_later();
  return operation;
}

void LocalGroup::advance_messages(Lock& lock) {
  if (messages_.empty()) return;
  Finished finished;
  std::exception_ptr error;
  const auto n = static_cast<std::size_t>(membership().size);
  std::vector<bool> held_up(2 * n, false);
  for (auto at = messages_.begin(); at != messages_.end() && !error;) {
    Operation& operation = **at;
    const Transfer& message = *operation.message_;
    const std::size_t pair =
        static_cast<std::size_t>(message.peer) + (message.direction == Transfer::Direction::kSend ? n : 0);
    bool complete = false;
    try {
      complete = !held_up[pair] && mailboxes_.advance(message, operation.progress_, operation.number_);
    } catch (const CommError&) {
      error = std::current_exception();
    }
    held_up[pair] = !complete;
    if (complete) finished.push_back(*at);
    at = complete ? messages_.erase(at) : std::next(at);
  }
  num_messages_.store(messages_.size());
  if (!finished.empty()) finish(lock, finished, nullptr);
  if (error) fail_all(lock, error);
}

/// Advances messages; checks their peers and deadlines at intervals.
void LocalGroup::attend_messages(Lock& lock) {
  advance_messages(lock);
  if (messages_.empty() || now_s() < check_messages_s_) return;
  check_messages_s_ = now_s() + kLookAfterPeers_s;
  check_messages(lock);
}

void LocalGroup::attend_messages_if_free() {
  if (num_messages_.load() == 0) return;
  Lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) attend_messages(lock);
}

std::uint64_t LocalGroup::message_activity() const {
  std::uint64_t sum = 0;
  const int me = membership().rank;
  for (int r = 0; r < membership().size; ++r)
    sum += block_->mailbox(r, me).written.load() + block_->mailbox(me, r).read.load();
  return sum;
}

void LocalGroup::wait_message(Lock& lock, Operation& operation, const Limit& limit) {
  const Transfer& message = *operation.message_;
  const Wait wait{limit.deadline, limit.timeout_s, Patience::kForeground,
                  [&] { return describe(operation); }};
  ++message_waiters_;
  while (!operation.done()) {
    const std::uint64_t before = message_activity();
    advance_messages(lock);
    if (operation.done()) break;
    lock.unlock();
    std::exception_ptr error;
    try {
      waiter_.wait_until(
          wait, [&] { return operation.done() || message_activity() != before; },
          [&](int r) { return r == message.peer; });
    } catch (const CommError&) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) fail_all(lock, error);
  }
  --message_waiters_;
  look_later();
}

/// For messages without a waiting thread: a dead peer or an expired deadline fails the group.
void LocalGroup::check_messages(Lock& lock) {
  std::vector<std::pair<std::shared_ptr<Operation>, std::string>> suspects;
  for (const auto& operation : messages_) {
    const auto is_peer = [&](int r) { return r == operation->message_->peer; };
    std::string cause = waiter_.find_dead(is_peer);
    if (cause.empty() && operation->deadline_.expired())
      cause = text(waiter_.describe_missing(is_peer), " did not arrive within ",
                   human_duration(operation->timeout_s_));
    if (!cause.empty()) suspects.emplace_back(operation, std::move(cause));
  }
  // A peer may have sent before it ended: data that has arrived counts.
  if (!suspects.empty()) advance_messages(lock);
  for (const auto& [operation, cause] : suspects)
    if (!operation->done()) block_->abort(text(describe(*operation), ": ", cause));
  if (block_->aborted())
    fail_all(lock, std::make_exception_ptr(block_->abort_error(membership().group_name)));
}

}  // namespace trireme::wire
