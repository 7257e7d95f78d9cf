#pragma once
// Ends works of our own when sends or receives of gloo end. Thread-safe.

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/internal/signalled_work.h"

namespace trireme::comm {

/// Waits for sends or receives of one peer, in order, on a thread of its own, made for the first of them:
/// gloo only completes them in wait(). Thread-safe.
class PeerWaiter {
 public:
  explicit PeerWaiter(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  ~PeerWaiter() {
    abort();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void add(c10::intrusive_ptr<c10d::Work> inner, c10::intrusive_ptr<SignalledWork> outer) {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(inner), std::move(outer)});
    changed_.notify_all();
    if (thread_.joinable()) return;
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "trireme-gloo");
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    for (auto& item : queue_) item.inner->abort();
    if (current_) current_->abort();
  }

 private:
  struct Item {
    c10::intrusive_ptr<c10d::Work> inner;
    c10::intrusive_ptr<SignalledWork> outer;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      // Needs no deadline: it waits for work, not for a rank; the destructor ends it.
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Item item = std::move(queue_.front());
      queue_.pop_front();
      current_ = item.inner;
      lock.unlock();
      item.outer->signal(outcome(*item.inner));
      lock.lock();
      current_.reset();
    }
  }

  std::exception_ptr outcome(c10d::Work& work) const {
    try {
      if (work.wait(timeout_)) return nullptr;
      return std::make_exception_ptr(CommError("the operation was aborted"));
    } catch (...) {
      return std::current_exception();
    }
  }

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  c10::intrusive_ptr<c10d::Work> current_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace trireme::comm
