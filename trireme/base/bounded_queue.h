#pragma once
// A blocking first-in first-out queue with a bound, for any number of producers and consumers. Closing it
// wakes everybody: producers stop, consumers drain what is left. Every wait has a deadline.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme {

template <class Value>
class BoundedQueue {
 public:
  /// At most `capacity` (at least 1) values wait in the queue.
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {
    require(capacity > 0, "a queue needs room for at least one value");
  }

  /// Waits for room. False when the queue is closed or the deadline passed; the value is dropped then.
  bool push(Value value, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    const bool ready =
        changed_.wait_until(lock, deadline.at(), [&] { return closed_ || values_.size() < capacity_; });
    if (!ready || closed_) return false;
    values_.push_back(std::move(value));
    changed_.notify_all();
    return true;
  }

  /// Waits for a value. Empty when the queue is closed and drained, or the deadline passed.
  std::optional<Value> pop(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.at(), [&] { return closed_ || !values_.empty(); });
    if (values_.empty()) return std::nullopt;
    std::optional<Value> value(std::move(values_.front()));
    values_.pop_front();
    changed_.notify_all();
    return value;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Value> values_;
  bool closed_ = false;
};

}  // namespace trireme
