#include "trireme/wire/local_group.h"

#include <unistd.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

/// An asynchronous collective of at least this size wakes the progress thread.
constexpr std::size_t kLargeBytes = 128 << 10;

}  // namespace

void LocalGroup::enter(SharedMemory& memory, int rank, int size) {
  const ControlBlock block(memory.shared_from_this(), BlockLayout::for_size(size));
  block.rank(rank).pid.store(::getpid());
}

LocalGroup::LocalGroup(std::shared_ptr<SharedMemory> memory, Membership membership)
    : block_(std::make_shared<const ControlBlock>(std::move(memory), BlockLayout::for_size(membership.size))),
      waiter_(block_, std::move(membership)),
      arena_(waiter_.membership().threads_of_one_process
                 ? nullptr
                 : std::make_shared<SharedArena>(block_, waiter_.membership().rank)),
      collectives_(block_, waiter_, arena_),
      mailboxes_(block_, waiter_) {
  waiter_.set_idle_work([this] { attend_messages_if_free(); });
}

LocalGroup::~LocalGroup() { shutdown(); }

// ---- issuing ----

std::shared_ptr<Operation> LocalGroup::make_operation(double timeout_s, std::shared_ptr<void> keeps_alive) {
  auto operation = std::make_shared<Operation>();
  operation->timeout_s_ = timeout_s;
  operation->keeps_alive_ = std::move(keeps_alive);
  return operation;
}

std::shared_ptr<Operation> LocalGroup::issue(Call call, Issue mode, double timeout_s,
                                             std::shared_ptr<void> keeps_alive) {
  auto operation = make_operation(timeout_s, std::move(keeps_alive));
  operation->call_ = std::move(call);
  Lock lock(mutex_);
  operation->number_ = ++last_collective_;
  if (failure_) {
    finish(lock, {operation}, failure_);
    return operation;
  }
  operation->issued_look_ = looks_;
  const bool first = queue_.empty();
  queue_.push_back(operation);
  // Only the first: the input of a later one may be the result of an earlier one.
  if (first) {
    collectives_.post(*operation->call_, operation->number_);
    operation->posted_ = true;
  }
  if (mode == Issue::kSync)
    wait_collective(lock, *operation, limit_of(*operation, timeout_s));
  else if (!first || begins_large(*operation))
    wake_progress_thread();
  else
    look_later();
  return operation;
}

/// True if the progress thread should start on it at once.
bool LocalGroup::begins_large(const Operation& operation) const {
  if (operation.call_) {
    const CallShape shape = shape_of(*operation.call_, membership().rank, membership().size);
    return std::max<std::size_t>(Collectives::input_bytes(*operation.call_, shape),
                                 operation.call_->count * bytes_of(operation.call_->element)) >= kLargeBytes;
  }
  const Transfer& message = *operation.message_;
  return message.direction == Transfer::Direction::kSend ||
         message.count * bytes_of(message.element) > block_->layout().mailbox_bytes;
}

// ---- waiting ----

void LocalGroup::wait(Operation& operation, double timeout_s) {
  if (!operation.done()) {
    Lock lock(mutex_);
    const Limit limit = limit_of(operation, timeout_s);
    if (operation.message_)
      wait_message(lock, operation, limit);
    else
      wait_collective(lock, operation, limit);
  }
  if (operation.error_) std::rethrow_exception(operation.error_);
}

LocalGroup::Limit LocalGroup::limit_of(const Operation& operation, double timeout_s) const {
  if (timeout_s > 0) return {Deadline::after_s(timeout_s), timeout_s};
  if (operation.message_) return {operation.deadline_, operation.timeout_s_};
  return {Deadline::after_s(operation.timeout_s_), operation.timeout_s_};
}

void LocalGroup::wait_collective(Lock& lock, const Operation& operation, const Limit& limit) {
  while (!operation.done()) {
    if (!running_)
      run_first(lock, Patience::kForeground, limit);
    else
      wait_for_runner(lock, operation, limit);
  }
  look_later();
}

void LocalGroup::wait_for_runner(Lock& lock, const Operation& operation, const Limit& limit) {
  ++waiting_;
  waiter_.set_urgent(true);
  const auto over = [&] { return operation.done() || !running_; };
  if (!changed_.wait_until(lock, limit.deadline.at(), over)) {
    const std::uint64_t first = queue_.front()->number_;
    const auto missing = [&](int r) { return block_->counter(r, Counter::kPosted).load() < first; };
    const std::string behind = waiter_.all_reached(Counter::kPosted, first)
                                   ? "not done"
                                   : waiter_.describe_missing(missing) + " did not arrive";
    block_->abort(text(describe(operation), ": ", behind, " within ", human_duration(limit.timeout_s)));
    // No deadline needed: the abort ends every wait of the running thread.
    changed_.wait(lock, over);
  }
  --waiting_;
  waiter_.set_urgent(waiting_ > 0);
}

bool LocalGroup::poll(Operation& operation) {
  if (operation.done()) return true;
  Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || operation.done()) return operation.done();
  if (operation.message_)
    advance_messages(lock);
  else if (!running_)
    wake_progress_thread();
  return operation.done();
}

void LocalGroup::when_done(Operation& operation, std::function<void()> action) {
  {
    const Lock lock(mutex_);
    if (!operation.done()) {
      operation.when_done_ = std::move(action);
      wake_progress_thread();
      return;
    }
  }
  action();
}

// ---- collectives ----

std::string LocalGroup::describe(const Operation& operation) const {
  const std::string& group = membership().group_name;
  if (operation.call_)
    return text(name(operation.call_->kind), " #", operation.number(), " of group ", group);
  return text(wire::describe(*operation.message_, membership()), " (message #", operation.number(),
              " of group ", group, ")");
}

void LocalGroup::run_first(Lock& lock, Patience patience, const Limit& limit) {
  const std::shared_ptr<Operation> operation = queue_.front();
  running_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    if (!operation->posted_) collectives_.post(*operation->call_, operation->number_);
    collectives_.run(*operation->call_, operation->number_,
                     {limit.deadline, limit.timeout_s, patience, [&] { return describe(*operation); }});
  } catch (const CommError&) {
    error = std::current_exception();
  } catch (const std::exception& failure) {
    block_->abort(text(describe(*operation), ": rank ", membership().rank_name(membership().rank), ": ",
                       failure.what()));
    error = std::current_exception();
  }
  if (error) collectives_.retreat(*operation->call_, operation->number_);
  lock.lock();
  running_ = false;
  queue_.pop_front();
  finish(lock, {operation}, error);
  if (error) fail_all(lock, error);
}

/// Marks operations as done and wakes the waiting threads. Completion callbacks run without the lock.
void LocalGroup::finish(Lock& lock, const Finished& finished, const std::exception_ptr& error) {
  std::vector<std::function<void()>> actions;
  std::vector<std::shared_ptr<void>> kept;
  const double done_s = now_s();
  for (const auto& operation : finished) {
    operation->error_ = error;
    operation->done_s_ = done_s;
    kept.push_back(std::move(operation->keeps_alive_));
    if (operation->when_done_) actions.push_back(std::move(operation->when_done_));
    operation->done_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (actions.empty()) return;
  lock.unlock();
  for (const auto& action : actions) action();
  lock.lock();
}

void LocalGroup::fail_all(Lock& lock, const std::exception_ptr& error) {
  if (!failure_) failure_ = error;
  Finished finished;
  if (!running_ && !queue_.empty() && queue_.front()->posted_)
    collectives_.retreat(*queue_.front()->call_, queue_.front()->number_);
  // The thread that runs the first collective owns it, and detects the failure itself.
  while (queue_.size() > (running_ ? 1U : 0U)) {
    finished.push_back(queue_.back());
    queue_.pop_back();
  }
  finished.insert(finished.end(), messages_.begin(), messages_.end());
  messages_.clear();
  num_messages_.store(0);
  if (!finished.empty()) finish(lock, finished, failure_);
}

// ---- shutdown ----

void LocalGroup::abort(const std::string& cause) {
  block_->abort(cause, GroupError::Kind::kGivenUp);
  Lock lock(mutex_);
  fail_all(lock, std::make_exception_ptr(block_->abort_error(membership().group_name)));
}

void LocalGroup::shutdown() {
  Lock lock(mutex_);
  if (stopping_) return;
  stopping_ = true;
  waiter_.stop();
  block_->rank(membership().rank).left.store(1);
  work_.notify_all();
  changed_.notify_all();
  lock.unlock();
  waiter_.ring_all();
  if (progress_thread_.joinable()) progress_thread_.join();
  lock.lock();
  // No deadline needed: every wait of a stopped group has ended.
  changed_.wait(lock, [this] { return !running_; });
  fail_all(lock, std::make_exception_ptr(
                     CommError(text("group ", membership().group_name, " has been shut down on rank ",
                                    membership().rank_name(membership().rank)))));
}

}  // namespace trireme::wire
