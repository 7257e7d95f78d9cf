// Work that is given to a loop from other threads.

#include "trireme/wire/node_loop.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

class TimedNode final : public Node {
 public:
  void on_start(Surroundings& surroundings) override { around_ = &surroundings; }
  void on_connected(ConnectionId, const PeerIdentity&) override {}
  void on_message(ConnectionId, Message) override {}
  void on_closed(ConnectionId, CloseCause, const std::string&) override {}
  void on_timer(TimerId) override { fired_on.set_value(std::this_thread::get_id()); }
  void start_timer(double after_s) { around_->start_timer(after_s); }

  std::promise<std::thread::id> fired_on;

 private:
  Surroundings* around_ = nullptr;
};

class LoopOnAThread : public testing::Test {
 public:
  ~LoopOnAThread() override {
    loop_.stop();
    thread_.join();
  }

 protected:
  LoopOnAThread()
      : thread_([this] {
          try {
            loop_.run(node_);
          } catch (...) {
            thrown_.set_exception(std::current_exception());
          }
        }) {}
  /// Runs it on this thread, as soon as the loop sleeps; false when it has not for long.
  bool run_here(const std::function<void()>& work) {
    for (int i = 0; i < 10'000; ++i) {
      const auto here = std::this_thread::get_id();
      const auto done = std::make_shared<std::promise<bool>>();
      loop_.post_or_run([&work, here, done] {
        const bool is_here = std::this_thread::get_id() == here;
        done->set_value(is_here);
        if (is_here) work();
      });
      if (done->get_future().get()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  NodeLoop loop_{NodeLoopOptions{}};
  TimedNode node_;
  std::promise<void> thrown_;
  std::thread thread_;
};

TEST_F(LoopOnAThread, WorkForALoopThatSleepsRunsOnItsCaller) {
  int num_runs = 0;
  EXPECT_TRUE(run_here([&] { ++num_runs; }));
  EXPECT_EQ(num_runs, 1);
}

TEST_F(LoopOnAThread, ATimerThatIsStartedInItsSleepWakesTheLoop) {
  ASSERT_TRUE(run_here([&] { node_.start_timer(0.01); }));
  auto fired = node_.fired_on.get_future();
  ASSERT_EQ(fired.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(fired.get(), thread_.get_id());
}

TEST_F(LoopOnAThread, WorkOfOneThreadRunsInItsOrderWhereverItRuns) {
  std::vector<int> order, expected(3000);
  std::iota(expected.begin(), expected.end(), 0);
  for (const int i : expected) {
    const auto work = [&order, i] { order.push_back(i); };
    i % 3 == 0 ? loop_.post(work) : loop_.post_or_run(work);
  }
  std::promise<void> all;
  loop_.post([&] { all.set_value(); });
  all.get_future().get();
  EXPECT_EQ(order, expected);
}

TEST_F(LoopOnAThread, WhatWorkThrowsInItsSleepEndsTheLoopAsAnywhereElse) {
  ASSERT_TRUE(run_here([] { throw InvalidArgument("no"); }));
  auto thrown = thrown_.get_future();
  ASSERT_EQ(thrown.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_THROW(thrown.get(), InvalidArgument);
}

}  // namespace
}  // namespace trireme::wire
