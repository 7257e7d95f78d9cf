#include "trireme/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace trireme {
namespace {

TEST(BoundedQueue, KeepsTheOrder) {
  BoundedQueue<int> queue(3);
  const auto deadline = Deadline::after_s(5);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue.push(i, deadline));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.pop(deadline), i);
}

TEST(BoundedQueue, AFullQueueRefusesAtTheDeadline) {
  BoundedQueue<int> queue(1);
  ASSERT_TRUE(queue.push(1, Deadline::after_s(5)));
  EXPECT_FALSE(queue.push(2, Deadline::after_s(0.01)));
  EXPECT_EQ(queue.size(), 1u);
}

TEST(BoundedQueue, AnEmptyQueueAnswersEmptyAtTheDeadline) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.pop(Deadline::after_s(0.01)), std::nullopt);
}

TEST(BoundedQueue, ClosingLetsConsumersDrainAndStopsProducers) {
  BoundedQueue<int> queue(2);
  ASSERT_TRUE(queue.push(7, Deadline::after_s(5)));
  queue.close();
  EXPECT_FALSE(queue.push(8, Deadline::after_s(5)));
  EXPECT_EQ(queue.pop(Deadline::after_s(5)), 7);
  EXPECT_EQ(queue.pop(Deadline::after_s(5)), std::nullopt);
}

TEST(BoundedQueue, ClosingWakesAWaitingConsumer) {
  BoundedQueue<int> queue(1);
  std::thread consumer([&] { EXPECT_EQ(queue.pop(Deadline::after_s(30)), std::nullopt); });
  queue.close();
  consumer.join();
}

TEST(BoundedQueue, ManyProducersAndConsumersLoseNothing) {
  BoundedQueue<int> queue(4);
  std::atomic<int> sum{0};
  std::vector<std::thread> consumers, producers;
  for (int c = 0; c < 3; ++c) {
    consumers.emplace_back([&] {
      while (const auto value = queue.pop(Deadline::after_s(30))) sum += *value;
    });
  }
  for (int p = 0; p < 3; ++p) {
    producers.emplace_back([&] {
      for (int i = 1; i <= 100; ++i) queue.push(i, Deadline::after_s(30));
    });
  }
  for (auto& thread : producers) thread.join();
  queue.close();
  for (auto& thread : consumers) thread.join();
  EXPECT_EQ(sum, 3 * 5050);
}

TEST(BoundedQueue, NeedsRoomForOneValue) { EXPECT_THROW(BoundedQueue<int>(0), InvalidArgument); }

}  // namespace
}  // namespace trireme
