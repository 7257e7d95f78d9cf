#include "trireme/wire/local_group.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

/// From here on an asynchronous collective is worth waking the progress thread for.
constexpr std::size_t kLargeBytes = 128 << 10;
constexpr double kLookAfterPeers_s = 0.02;

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
  waiter_.set_idle_work([this] { advance_messages_if_free(); });
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
  const bool first = queue_.empty();
  queue_.push_back(operation);
  // Only the first: what a later one exposes may still be the result of an earlier one.
  if (first) {
    collectives_.post(*operation->call_, operation->number_);
    operation->posted_ = true;
  }
  if (mode == Issue::kSync) {
    while (!operation->done()) {
      if (!running_)
        run_first(lock, Patience::kForeground, timeout_s);
      else
        wait_for_runner(lock, 0, *operation);
    }
  } else if (!first || begins_large(*operation)) {
    wake_progress_thread();
  }
  return operation;
}

/// True when somebody else may be held up unless this operation is worked on in the background.
bool LocalGroup::begins_large(const Operation& operation) const {
  if (operation.call_) {
    const CallShape shape = shape_of(*operation.call_, membership().rank, membership().size);
    return std::max<std::size_t>(Collectives::input_bytes(*operation.call_, shape),
                                 operation.call_->count * bytes_of(operation.call_->element)) >= kLargeBytes;
  }
  const Message& message = *operation.message_;
  return message.direction == Message::Direction::kSend ||
         message.count * bytes_of(message.element) > block_->layout().mailbox_bytes;
}

// ---- waiting ----

void LocalGroup::wait(Operation& operation, double timeout_s) {
  Lock lock(mutex_);
  if (operation.message_) {
    wait_message(lock, operation, timeout_s);
  } else {
    while (!operation.done()) {
      if (!running_)
        run_first(lock, Patience::kForeground, timeout_s);
      else
        wait_for_runner(lock, timeout_s, operation);
    }
  }
  if (operation.error_) std::rethrow_exception(operation.error_);
}

void LocalGroup::wait_for_runner(Lock& lock, double timeout_s, const Operation& operation) {
  ++waiting_;
  waiter_.set_urgent(true);
  const auto over = [&] { return operation.done() || !running_; };
  if (timeout_s <= 0) {
    // Whoever runs it has a deadline.
    changed_.wait(lock, over);
  } else if (!changed_.wait_for(lock, Seconds(timeout_s), over)) {
    block_->abort(text(describe(operation), ": not done within ", human_duration(timeout_s)));
    changed_.wait(lock, over);
  }
  --waiting_;
  waiter_.set_urgent(waiting_ > 0);
}

bool LocalGroup::poll(Operation& operation) {
  if (operation.done()) return true;
  Lock lock(mutex_);
  if (operation.message_) {
    advance_messages(lock);
    return operation.done();
  }
  if (operation.done()) return true;
  const bool first = !running_ && queue_.front().get() == &operation && operation.posted_;
  if (first && !begins_large(operation) && collectives_.all_posted(operation.number_))
    run_first(lock, Patience::kForeground, 0);
  else
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

Wait LocalGroup::wait_for(const Operation& operation, Patience patience, double timeout_s) const {
  const double seconds = timeout_s > 0 ? timeout_s : operation.timeout_s_;
  return {Deadline::after_s(seconds), seconds, patience, [this, &operation] { return describe(operation); }};
}

void LocalGroup::run_first(Lock& lock, Patience patience, double timeout_s) {
  const std::shared_ptr<Operation> operation = queue_.front();
  running_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    if (!operation->posted_) collectives_.post(*operation->call_, operation->number_);
    collectives_.run(*operation->call_, operation->number_, wait_for(*operation, patience, timeout_s));
  } catch (const CommError&) {
    error = std::current_exception();
  } catch (const std::exception& failure) {
    block_->abort(text(describe(*operation), ": rank ", membership().rank_name(membership().rank), ": ",
                       failure.what()));
    error = std::current_exception();
  }
  lock.lock();
  running_ = false;
  queue_.pop_front();
  finish(lock, {operation}, error);
  if (error) fail_all(lock, error);
}

/// Marks operations as done and lets those who wait know; runs what wants to hear of it without the lock.
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
  // The first collective belongs to the thread that runs it; that thread hears of the failure itself.
  while (queue_.size() > (running_ ? 1U : 0U)) {
    finished.push_back(queue_.back());
    queue_.pop_back();
  }
  finished.insert(finished.end(), messages_.begin(), messages_.end());
  messages_.clear();
  num_messages_.store(0);
  if (!finished.empty()) finish(lock, finished, failure_);
}

// ---- the progress thread ----

void LocalGroup::wake_progress_thread() {
  wanted_.store(true);
  if (!progress_thread_.joinable() && !stopping_) {
    progress_thread_ = std::thread([this] { progress_loop(); });
    ::pthread_setname_np(progress_thread_.native_handle(), "trireme-shm");
  }
  work_.notify_one();
  block_->ring(membership().rank);
}

void LocalGroup::progress_loop() {
  Lock lock(mutex_);
  while (!stopping_) {
    work_.wait(lock, [this] { return stopping_ || wanted_.load(); });
    wanted_.store(false);
    while (!stopping_ && !queue_.empty()) {
      if (running_)
        changed_.wait(lock, [this] { return !running_ || stopping_; });
      else
        run_first(lock, Patience::kBackground, 0);
    }
    while (!stopping_ && !messages_.empty() && !wanted_.load()) {
      const std::uint64_t before = message_activity();
      advance_messages(lock);
      if (messages_.empty()) break;
      lock.unlock();
      waiter_.sleep([&] { return wanted_.load() || message_activity() != before; }, kLookAfterPeers_s);
      lock.lock();
      if (!stopping_) check_messages(lock);
    }
  }
}

// ---- the end ----

void LocalGroup::abort(const std::string& cause) {
  block_->abort(cause);
  Lock lock(mutex_);
  fail_all(lock, std::make_exception_ptr(CommError(block_->abort_cause())));
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
  changed_.wait(lock, [this] { return !running_; });
  fail_all(lock, std::make_exception_ptr(
                     CommError(text("group ", membership().group_name, " has been shut down on rank ",
                                    membership().rank_name(membership().rank)))));
}

}  // namespace trireme::wire
