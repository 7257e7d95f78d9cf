#pragma once
// A queue of many producers and one consumer that takes no lock: an intrusive list whose end producers swap
// (D. Vyukov, "Intrusive MPSC node-based queue", 1024cores.net). The consumer sleeps on a futex while it is
// empty, and never spins. A producer that links an item checks afterwards whether the consumer sleeps. The
// consumer checks for items after it has announced its sleep. In the one order of all sequentially consistent
// steps, one of the two sees the other.
//
// It is bounded by its producers: push() takes every item and returns when the queue has become full, and the
// producer then pushes no more until there is room. So it holds at most its limits and one item of each
// producer, and nothing is rejected that cannot be given back. push(), push_quietly(), wake() and
// asks_for_room() belong to any thread, sleep() to the consumer's, pop(), begin_sleep() and makes_room() to
// one at a time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "trireme/wire/futex.h"

namespace trireme::ps {

/// Base class of a queue's items.
struct MpscLink {
  std::atomic<MpscLink*> next{nullptr};
};

struct QueueLimits {
  std::size_t most_items = 4096;
  std::size_t most_bytes = 64 << 20;
};

/// The sleep steps of a queue; a test replaces them to run the other side between two steps of this one.
struct FutexSteps {
  static void between() {}
  static void sleep(const std::atomic<std::uint32_t>& word) {
    constexpr double kLongest_s = 3600;
    wire::futex_wait(word, 1, kLongest_s);
  }
  static void wake(const std::atomic<std::uint32_t>& word) { wire::futex_wake_all(word); }
};

/// Item: an MpscLink with num_bytes(), which does not change while it is in the queue.
template <class Item, class Steps = FutexSteps>
class MpscQueue {
 public:
  explicit MpscQueue(const QueueLimits& limits) : limits_(limits), last_(&stub_), first_(&stub_) {}
  ~MpscQueue() {
    while (pop()) continue;
  }
  MpscQueue(const MpscQueue&) = delete;
  MpscQueue& operator=(const MpscQueue&) = delete;

  /// Takes it. Whether there is still room for another.
  bool push(std::unique_ptr<Item> item) {
    const bool has_room = push_quietly(std::move(item));
    wake();
    return has_room;
  }
  /// The same without waking the consumer: wake() has to follow, or pop() by the thread with the consumer's
  /// turn.
  bool push_quietly(std::unique_ptr<Item> item) {
    const std::size_t bytes = num_bytes_.fetch_add(item->num_bytes()) + item->num_bytes();
    const std::size_t items = num_items_.fetch_add(1) + 1;
    link(item.release());
    return items < limits_.most_items && bytes < limits_.most_bytes;
  }
  /// A consumer that sleeps.
  void wake() {
    Steps::between();
    if (asleep_.load() == 0 || asleep_.exchange(0) == 0) return;
    Steps::between();
    Steps::wake(asleep_);
  }

  /// The oldest; null when there is none, or when a producer is just linking it, which will wake the
  /// consumer.
  std::unique_ptr<Item> pop() {
    MpscLink* first = first_;
    MpscLink* next = first->next.load();
    if (first == &stub_) {
      if (next == nullptr) return nullptr;
      first_ = first = next;
      next = next->next.load();
    }
    if (next == nullptr) {
      Steps::between();
      if (first != last_.load()) return nullptr;
      stub_.next.store(nullptr);  // after the last, so that the last can go
      link(&stub_);
      next = first->next.load();
      if (next == nullptr) return nullptr;
    }
    first_ = next;
    std::unique_ptr<Item> item(static_cast<Item*>(first));
    num_bytes_.fetch_sub(item->num_bytes());
    num_items_.fetch_sub(1);
    return item;
  }

  /// From now on every push wakes the consumer. True: there is nothing, and sleep() follows.
  bool begin_sleep() {
    asleep_.store(1);
    Steps::between();
    if (!has_some()) return true;
    asleep_.store(0);
    return false;
  }
  /// Until a producer wakes it; it may also return without a reason.
  void sleep() {
    Steps::between();
    Steps::sleep(asleep_);
    asleep_.store(0);
  }
  /// Until pop() may have something; it may also return without a reason.
  void wait() {
    if (begin_sleep()) sleep();
  }

  std::size_t num_items() const { return num_items_.load(); }
  std::size_t num_bytes() const { return num_bytes_.load(); }

  /// For a producer after a full queue. True: there is room by now. False: makes_room() will be.
  bool asks_for_room() {
    room_is_wanted_.store(true);
    return has_room() && room_is_wanted_.exchange(false);
  }
  /// For the consumer, after pop(): whether a producer is to be notified of room. True once.
  bool makes_room() { return room_is_wanted_.load() && has_room() && room_is_wanted_.exchange(false); }

 private:
  /// At most half, so that a producer does not come back for one item.
  bool has_room() const {
    return num_items_.load() <= limits_.most_items / 2 && num_bytes_.load() <= limits_.most_bytes / 2;
  }
  bool has_some() const {
    return first_->next.load() != nullptr || (first_ != &stub_ && first_ == last_.load());
  }
  void link(MpscLink* item) {
    MpscLink* before = last_.exchange(item);
    Steps::between();
    before->next.store(item);
  }

  const QueueLimits limits_;
  MpscLink stub_;
  alignas(64) std::atomic<MpscLink*> last_;  ///< producers'
  std::atomic<std::size_t> num_items_{0}, num_bytes_{0};
  std::atomic<bool> room_is_wanted_{false};
  alignas(64) MpscLink* first_;  ///< the consumer's
  std::atomic<std::uint32_t> asleep_{0};
};

}  // namespace trireme::ps
