#pragma once
// Threads that run requested functions. A fixed number runs at a time. A thread that waits for a future does
// not count, and another one replaces it: functions may call each other in circles without exhausting the
// pool. The thread that was idle for the shortest time goes first, as its caches and its helper threads are
// warm. Thread-safe. Its owner calls close(), from a thread of its own, before the last reference to it goes.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme::rpc {

/// Number of threads, and the function that each runs first.
struct WorkerPoolOptions {
  std::size_t num_threads = 4;    ///< that run at a time
  std::size_t max_threads = 512;  ///< with those that wait
  std::function<void()> on_thread_start = {};
};

class WorkerPool {
 public:
  explicit WorkerPool(WorkerPoolOptions options) : options_(std::move(options)) {}
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Does nothing once it is closed. `work` does not throw.
  void submit(std::function<void()> work);
  /// Finishes running functions and drops waiting ones. Waits; do not call it from a thread of the pool.
  void close();
  /// Of work that has been given and not finished.
  std::size_t num_unfinished() const;

 private:
  friend class BlockedScope;
  struct Thread {
    std::condition_variable wake;
    std::function<void()> work;
    bool told = false;
    std::thread thread;
  };

  void serve(Thread& self);
  /// Hands queued work to idle threads, or to new ones, while so many run as may. Under the lock.
  void dispatch();
  void enter_blocked();
  void leave_blocked();

  const WorkerPoolOptions options_;
  mutable std::mutex mutex_;
  std::deque<std::function<void()>> queue_;
  std::list<Thread> threads_;
  std::vector<Thread*> idle_;  ///< the last one has rested for the shortest time
  std::size_t num_busy_ = 0, num_blocked_ = 0;
  bool closed_ = false;
};

/// While it exists, the calling thread waits for another one. No effect on a thread outside a pool.
class BlockedScope {
 public:
  BlockedScope();
  ~BlockedScope();
  BlockedScope(const BlockedScope&) = delete;
  BlockedScope& operator=(const BlockedScope&) = delete;

 private:
  WorkerPool* const pool_;
};

}  // namespace trireme::rpc
