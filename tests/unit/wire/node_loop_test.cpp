// Work that other threads give to a loop.

#include "trireme/wire/node_loop.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"

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
  /// Runs it on this thread as soon as the loop sleeps. Returns false if the loop does not sleep for a long
  /// time.
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

TEST_F(LoopOnAThread, SleepingLoopWorkRunsOnCaller) {
  int num_runs = 0;
  EXPECT_TRUE(run_here([&] { ++num_runs; }));
  EXPECT_EQ(num_runs, 1);
}

TEST_F(LoopOnAThread, NewTimerWakesSleepingLoop) {
  ASSERT_TRUE(run_here([&] { node_.start_timer(0.01); }));
  auto fired = node_.fired_on.get_future();
  ASSERT_EQ(fired.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(fired.get(), thread_.get_id());
}

TEST_F(LoopOnAThread, WorkOfThreadRunsInOrder) {
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

TEST_F(LoopOnAThread, ExceptionDuringSleepEndsLoop) {
  ASSERT_TRUE(run_here([] { throw InvalidArgument("no"); }));
  auto thrown = thrown_.get_future();
  ASSERT_EQ(thrown.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_THROW(thrown.get(), InvalidArgument);
}

void run_on_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  ASSERT_EQ(::sched_setaffinity(0, sizeof cores, &cores), 0);
}

/// A node with constant input, so that its loop would spin without end.
class EagerNode final : public Node {
 public:
  void on_start(Surroundings& surroundings) override {
    around_ = &surroundings;
    around_->start_timer(0.001);
  }
  void on_connected(ConnectionId, const PeerIdentity&) override {}
  void on_message(ConnectionId, Message) override {}
  void on_closed(ConnectionId, CloseCause, const std::string&) override {}
  void on_timer(TimerId) override { around_->start_timer(0.001); }

 private:
  Surroundings* around_ = nullptr;
};

TEST(ALoopThatSpins, YieldsToThreadThatWantsCore) {
  constexpr double kWait_s = 60;  // ends a test that would hang
  const int core = allowed_cores().front();
  NodeLoopOptions options;
  options.spin_s = 0.01;
  NodeLoop loop(std::move(options));
  EagerNode node;
  const auto given_up = [&] {
    const ChannelCounts counts = loop.counts();
    return counts.contains("spins given up for another thread");
  };
  std::thread spins([&] {
    run_on_core(core);
    loop.run(node);
  });
  std::atomic<bool> is_over = false;
  std::thread wants([&] {
    run_on_core(core);
    while (!is_over) {
    }
  });
  const Deadline deadline = Deadline::after_s(kWait_s);
  while (!given_up() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(given_up());
  is_over = true;
  loop.stop();
  spins.join();
  wants.join();
}

}  // namespace
}  // namespace trireme::wire
