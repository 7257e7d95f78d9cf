#pragma once
// A group of ranks on one host: collectives and messages through shared memory. The engine of the backends
// "shm" (ranks are processes) and "threads" (ranks are threads of one process).
//
// Collectives run in the order issued, messages of a pair too; messages do not wait for collectives. A thread
// that waits for an operation runs it when no other thread has begun it. The progress thread takes large
// operations at once, so that they overlap with computing. It takes every other one for which no thread waits
// within a millisecond or two. So an issued operation continues without its issuing thread. One thread
// issues; waiting is allowed from any thread. Memory has to stay alive until the operation is done.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "trireme/wire/collectives.h"
#include "trireme/wire/mailboxes.h"

namespace trireme::wire {

/// One operation that has been issued. Thread-safe; kept alive by its group until it is done.
class Operation {
 public:
  std::uint64_t number() const { return number_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Null while it runs and when it went well.
  std::exception_ptr error() const { return done() ? error_ : nullptr; }
  /// When it was done, on the monotonic clock; 0 while it runs.
  double done_s() const { return done() ? done_s_ : 0; }

 private:
  friend class LocalGroup;
  std::uint64_t number_ = 0;
  std::optional<Call> call_;
  std::optional<Transfer> message_;
  Mailboxes::Progress progress_;
  double timeout_s_ = 60;
  Deadline deadline_ = Deadline::after_s(0);  ///< of a message
  bool posted_ = false;
  std::uint64_t issued_look_ = 0;  ///< number of the progress thread's last look before it was issued
  std::atomic<bool> done_{false};
  double done_s_ = 0;
  std::exception_ptr error_;
  std::function<void()> when_done_;
  std::shared_ptr<void> keeps_alive_;
};

/// Whether the issuer continues at once or wants the result before it does.
enum class Issue { kAsync, kSync };

class LocalGroup {
 public:
  /// `memory` is the group's control block of BlockLayout::for_size(size). All ranks have to have called
  /// enter() before the first operation is issued anywhere.
  LocalGroup(std::shared_ptr<SharedMemory> memory, Membership membership);
  /// Shuts down.
  ~LocalGroup();
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  /// Makes this rank's process known in the control block. To be called by every rank, before any of them
  /// makes its LocalGroup.
  static void enter(SharedMemory& memory, int rank, int size);

  const Membership& membership() const { return waiter_.membership(); }

  /// Issues a collective; kSync returns when it is done, if nothing else is under way. `keeps_alive` is held
  /// until it is done. After a failure of the group the operation comes back failed.
  std::shared_ptr<Operation> issue(Call call, Issue mode, double timeout_s,
                                   std::shared_ptr<void> keeps_alive = nullptr);
  std::shared_ptr<Operation> issue(const Transfer& message, Issue mode, double timeout_s,
                                   std::shared_ptr<void> keeps_alive = nullptr);

  /// Waits for the end of the operation and throws its error. With `timeout_s` > 0 also fails the group when
  /// that passes first.
  void wait(Operation& operation, double timeout_s = 0);
  /// True when it is done. Never waits; makes sure that a thread runs it.
  bool poll(Operation& operation);
  /// Calls `action` once, when the operation is done, in the thread that finishes it (here if it is done).
  void when_done(Operation& operation, std::function<void()> action);

  /// A block that all_reduce works on in place; freed with free(). Null for threads: any memory will do.
  std::shared_ptr<SharedArena> arena() const { return arena_; }

  /// Makes the group unusable for all ranks, with this cause.
  void abort(const std::string& cause);
  /// Fails pending operations here and notifies the peers that this rank has left. Idempotent.
  void shutdown();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Finished = std::vector<std::shared_ptr<Operation>>;
  /// The deadline of a wait, and its seconds for messages.
  struct Limit {
    Deadline deadline;
    double timeout_s;
  };
  std::shared_ptr<Operation> make_operation(double timeout_s, std::shared_ptr<void> keeps_alive);
  Limit limit_of(const Operation& operation, double timeout_s) const;
  std::string describe(const Operation& operation) const;
  bool begins_large(const Operation& operation) const;

  void wait_collective(Lock& lock, const Operation& operation, const Limit& limit);
  void run_first(Lock& lock, Patience patience, const Limit& limit);
  void wait_for_runner(Lock& lock, const Operation& operation, const Limit& limit);
  void wait_message(Lock& lock, Operation& operation, const Limit& limit);
  void advance_messages(Lock& lock);
  void attend_messages(Lock& lock);
  void attend_messages_if_free();
  void check_messages(Lock& lock);
  std::uint64_t message_activity() const;
  void finish(Lock& lock, const Finished& finished, const std::exception_ptr& error);
  void fail_all(Lock& lock, const std::exception_ptr& error);

  void start_progress_thread();
  void wake_progress_thread();
  void look_later();
  bool left_alone(const std::deque<std::shared_ptr<Operation>>& operations) const;
  void progress_loop();
  bool is_needed_for_messages(bool drives_already) const;
  void run_collectives(Lock& lock);
  void sleep_until_called(Lock& lock);
  void sleep_on_messages(Lock& lock);
  void count_look();

  std::shared_ptr<const ControlBlock> block_;
  Waiter waiter_;
  std::shared_ptr<SharedArena> arena_;
  Collectives collectives_;
  Mailboxes mailboxes_;

  std::mutex mutex_;
  std::condition_variable changed_;  ///< an operation ended, or no thread runs the first collective any more
  std::condition_variable work_;     ///< for the progress thread
  std::deque<std::shared_ptr<Operation>> queue_;     ///< collectives not done, in order
  std::deque<std::shared_ptr<Operation>> messages_;  ///< not done, in order
  std::atomic<std::size_t> num_messages_{0};
  std::uint64_t last_collective_ = 0;
  std::uint64_t last_message_ = 0;
  bool running_ = false;             ///< a thread runs the first collective
  std::atomic<bool> wanted_{false};  ///< the progress thread is to look
  int waiting_ = 0;                  ///< threads that wait for an operation that another thread runs
  int message_waiters_ = 0;          ///< threads that wait for a message, and so drive all of them
  double check_messages_s_ = 0;      ///< when the peers of messages are looked after next
  // The progress thread looks around now and then while operations are issued; else it sleeps until called.
  bool looking_ = false;
  std::uint64_t looks_ = 0;
  std::uint64_t asked_look_ = 0;  ///< number of the last look when an operation was left to it
  double next_look_s_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread progress_thread_;
};

}  // namespace trireme::wire
