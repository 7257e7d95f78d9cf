#pragma once
// Reductions in stages: the later stages of a bucket begin with the next bucket, or when its result is
// requested, always in the order of the buckets. So the first stage runs concurrently with backward, and all
// ranks issue the same operations in the same order. One thread.

#include <deque>
#include <functional>
#include <memory>
#include <utility>

namespace trireme::parallel {

class Relay {
 public:
  using Wait = std::function<void()>;

  /// The first stage of a bucket is in progress. `next` waits for it, starts the later stages and returns a
  /// function that waits for those. The returned function waits for all of it.
  Wait add(std::function<Wait()> next) {
    begin_next();
    waiting_.push_back(std::make_shared<Stage>(Stage{.next = std::move(next), .rest = nullptr}));
    return [this, stage = waiting_.back()] {
      begin_next();
      if (stage->rest) stage->rest();
    };
  }

 private:
  struct Stage {
    std::function<Wait()> next;
    Wait rest;  ///< empty: not begun, or that has failed
  };

  void begin_next() {
    while (!waiting_.empty()) {
      const std::shared_ptr<Stage> first = std::move(waiting_.front());
      waiting_.pop_front();
      first->rest = std::exchange(first->next, nullptr)();
    }
  }

  std::deque<std::shared_ptr<Stage>> waiting_;
};

}  // namespace trireme::parallel
