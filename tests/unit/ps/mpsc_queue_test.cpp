// The queue between a server's loop and its owner threads.

#include "trireme/ps/internal/mpsc_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

namespace trireme::ps {
namespace {

struct Item final : MpscLink {
  Item(int of, std::uint64_t its_number, std::size_t its_bytes = 1)
      : producer(of), number(its_number), bytes(its_bytes) {
    ++num_alive;
  }
  ~Item() { --num_alive; }
  std::size_t num_bytes() const { return bytes; }
  static inline std::atomic<int> num_alive{0};
  int producer;
  std::uint64_t number;
  std::size_t bytes;
};
using Queue = MpscQueue<Item>;

TEST(MpscQueue, PopsItemsInOrder) {
  Queue queue({});
  EXPECT_EQ(queue.pop(), nullptr);
  for (int round = 0; round < 3; ++round) {  // it passes its stub several times
    for (std::uint64_t i = 0; i < 5; ++i) queue.push(std::make_unique<Item>(0, i));
    for (std::uint64_t i = 0; i < 5; ++i) {
      const auto item = queue.pop();
      ASSERT_NE(item, nullptr);
      EXPECT_EQ(item->number, i);
    }
    EXPECT_EQ(queue.pop(), nullptr);
    EXPECT_EQ(queue.num_bytes(), 0U);
  }
}

TEST(MpscQueue, ReportsFullnessAndRequestsRoomOnce) {
  Queue queue({.most_items = 4, .most_bytes = 100});
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(queue.push(std::make_unique<Item>(0, i)));
  EXPECT_FALSE(queue.push(std::make_unique<Item>(0, 3)));
  EXPECT_FALSE(queue.asks_for_room());
  queue.pop();
  EXPECT_FALSE(queue.makes_room()) << "with three of four there is no room";
  queue.pop();
  EXPECT_TRUE(queue.makes_room());
  EXPECT_FALSE(queue.makes_room()) << "it was said";
  while (queue.pop()) continue;
  EXPECT_TRUE(queue.push(std::make_unique<Item>(0, 0, 50)));
  EXPECT_FALSE(queue.push(std::make_unique<Item>(0, 1, 50)));
  queue.pop();
  EXPECT_TRUE(queue.asks_for_room()) << "there was room before it was asked for";
  EXPECT_FALSE(queue.makes_room());
}

TEST(MpscQueue, DestructorFreesRemainingItems) {
  {
    Queue queue({});
    for (std::uint64_t i = 0; i < 10; ++i) queue.push(std::make_unique<Item>(0, i));
  }
  EXPECT_EQ(Item::num_alive, 0);
}

/// Producers stop when the queue is full and continue when it has room. The consumer sleeps when it is empty.
void stress(int num_producers, std::uint64_t each, const QueueLimits& limits) {
  Queue queue(limits);
  std::vector<std::unique_ptr<std::atomic<bool>>> may_go_on;
  std::vector<std::thread> producers;
  for (int p = 0; p < num_producers; ++p) may_go_on.push_back(std::make_unique<std::atomic<bool>>(true));
  for (int p = 0; p < num_producers; ++p) {
    producers.emplace_back([&, p] {
      std::atomic<bool>& go_on = *may_go_on[static_cast<std::size_t>(p)];
      for (std::uint64_t i = 0; i < each; ++i) {
        if (queue.push(std::make_unique<Item>(p, i, i % 7))) continue;
        go_on.store(false);
        if (!queue.asks_for_room()) go_on.wait(false);
        for (const auto& other : may_go_on) {  // the notified producer notifies the others
          other->store(true);
          other->notify_all();
        }
      }
    });
  }
  std::vector<std::uint64_t> next(static_cast<std::size_t>(num_producers), 0);
  std::uint64_t taken = 0;
  std::size_t most = 0;
  bool in_order = true;
  while (taken < each * static_cast<std::uint64_t>(num_producers)) {
    most = std::max(most, queue.num_items());
    const auto item = queue.pop();
    if (!item) {
      queue.wait();
      continue;
    }
    ++taken;
    in_order = in_order && item->number == next[static_cast<std::size_t>(item->producer)]++;
    if (!queue.makes_room()) continue;
    for (const auto& each_producer : may_go_on) {
      each_producer->store(true);
      each_producer->notify_all();
    }
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(queue.pop(), nullptr);
  EXPECT_EQ(queue.num_items(), 0U);
  EXPECT_EQ(queue.num_bytes(), 0U);
  if (num_producers == 1) {
    EXPECT_LE(most, limits.most_items);
  }
}

TEST(MpscQueue, LosesNothingFromFourProducers) { stress(4, 250'000, {}); }

TEST(MpscQueue, WakesConsumerAndProducersUnderFrequentSleep) {
  stress(3, 50'000, {.most_items = 2, .most_bytes = 1000});
}

TEST(MpscQueue, RespectsLimitWithWaitingProducer) {
  stress(1, 50'000, {.most_items = 3, .most_bytes = 1000});
}

/// Runs `other` once, at a step that the test selects, and tracks whether the consumer sleeps.
struct ChosenSteps {
  static inline int left = 0;
  static inline bool sleeps = false;
  static inline std::function<void()> other;
  static void begin(int step, std::function<void()> what) {
    left = step;
    sleeps = false;
    other = std::move(what);
  }
  static void between() {
    if (left-- == 0) other();
  }
  struct Sleeping {};
  static void sleep(const std::atomic<std::uint32_t>& word) {
    if (word != 1) return;  // like a futex
    sleeps = true;
    throw Sleeping{};
  }
  static void wake(const std::atomic<std::uint32_t>&) { sleeps = false; }
};
using SteppedQueue = MpscQueue<Item, ChosenSteps>;

/// A sleeping consumer leaves the function.
void pop_or_sleep(SteppedQueue& queue) try {
  if (!queue.pop()) queue.wait();
} catch (const ChosenSteps::Sleeping&) {
}

TEST(MpscQueue, SleepingConsumerMissesNoPush) {
  for (const int already : {0, 1, 2}) {  // so that the stub is passed at different places
    int step = 0;
    do {
      SteppedQueue queue({});
      for (int i = 0; i < already; ++i) queue.push(std::make_unique<Item>(0, 0));
      for (int i = 0; i < already; ++i) queue.pop();
      ChosenSteps::begin(step, [&] { queue.push(std::make_unique<Item>(0, 7)); });
      pop_or_sleep(queue);
      EXPECT_FALSE(ChosenSteps::sleeps && ChosenSteps::left < 0) << "a push at step " << step << " is lost";
      ++step;
    } while (ChosenSteps::left < 0);
    EXPECT_GE(step, 3) << "there are steps to choose from";
  }
}

TEST(MpscQueue, PushWakesConsumerAtEveryStep) {
  for (const int already : {0, 1, 2}) {
    int step = 0;
    do {
      SteppedQueue queue({});
      for (int i = 0; i < already; ++i) queue.push(std::make_unique<Item>(0, 0));
      for (int i = 0; i < already; ++i) queue.pop();
      ChosenSteps::begin(step, [&] { pop_or_sleep(queue); });
      queue.push(std::make_unique<Item>(0, 7));
      EXPECT_FALSE(ChosenSteps::sleeps) << "who lies down at step " << step << " is left asleep";
      ++step;
    } while (ChosenSteps::left < 0);
    EXPECT_GE(step, 3) << "there are steps to choose from";
  }
}

}  // namespace
}  // namespace trireme::ps
