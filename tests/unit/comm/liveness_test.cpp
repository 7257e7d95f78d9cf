// How long ranks wait for others that make progress, make none, or have left, on every backend.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> backends() {
  std::vector<std::string> result;
  for (const auto& info : backend_infos()) {
    if (info.name != "nccl") result.push_back(info.name);
  }
  return result;
}

void sleep_s(double seconds) { std::this_thread::sleep_for(Seconds(seconds)); }

double cpu_s_of_thread() {
  std::timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// Uses a fifth of a core, which is a multiple of the threshold for computing, and reports nothing. It uses
/// no more, because other cases run concurrently.
void compute_for_s(double seconds) {
  volatile double sum = 0;
  const double begin_s = now_s(), begin_cpu_s = cpu_s_of_thread();
  for (const auto deadline = Deadline::after_s(seconds); !deadline.expired();) {
    if (cpu_s_of_thread() - begin_cpu_s > 0.2 * (now_s() - begin_s)) sleep_s(0.002);
    for (int i = 0; i < 100'000; ++i) sum = sum + 1;
  }
}

/// Ranks wait for each other here without communication.
class Meeting {
 public:
  explicit Meeting(int num_ranks) : num_missing_(num_ranks) {}
  void arrive() {
    std::unique_lock lock(mutex_);
    if (--num_missing_ == 0) all_here_.set_value();
    lock.unlock();
    ASSERT_EQ(come_.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }

 private:
  std::mutex mutex_;
  int num_missing_;
  std::promise<void> all_here_;
  std::shared_future<void> come_ = all_here_.get_future().share();
};

class Liveness : public testing::TestWithParam<std::string> {
 protected:
  using Body = std::function<void(Context&)>;

  /// The CommError of each rank, or an empty text. Ranks stay until all have their result.
  std::map<int, std::string> errors_of(int num_ranks, ContextOptions options, const Body& body) {
    std::map<int, std::string> errors;
    std::mutex mutex;
    Meeting end(num_ranks);
    options.backend = GetParam();
    const auto run = [&](Context& context) {
      std::string error;
      try {
        body(context);
      } catch (const CommError& failure) {
        error = failure.what();
      }
      {
        const std::lock_guard lock(mutex);
        errors[context.rank()] = error;
      }
      end.arrive();
    };
    run_ranks_as_threads(num_ranks, run, options);
    return errors;
  }

  /// Runs ranks that end at any time.
  void run(int num_ranks, ContextOptions options, const Body& body) {
    options.backend = GetParam();
    run_ranks_as_threads(num_ranks, body, options);
  }
};

INSTANTIATE_TEST_SUITE_P(EveryBackend, Liveness, testing::ValuesIn(backends()),
                         [](const auto& test) { return test.param; });

void reduce(Context& context) {
  auto tensor = at::full({64}, 1.0);
  context.world().all_reduce(tensor);
  EXPECT_EQ(tensor[63].item<double>(), context.world_size());
}

TEST_P(Liveness, BusyRankIsSlowAndAwaited) {
  testing::internal::CaptureStderr();
  const auto errors = errors_of(2, {.timeout_s = 2}, [](Context& context) {
    if (context.rank() == 1) {
      context.status().set_action("step 3: 0F1");
      compute_for_s(5);
    }
    reduce(context);
  });
  const std::string said = testing::internal::GetCapturedStderr();
  for (const int rank : {0, 1}) EXPECT_EQ(errors.at(rank), "");
  EXPECT_THAT(said, AllOf(HasSubstr("[rank 0]: warning: rank 1 (pid "), HasSubstr("is slow: all_reduce #1"),
                          HasSubstr("step 3: 0F1")));
}

TEST_P(Liveness, RankAtDeclaredWorkIsAwaited) {
  testing::internal::CaptureStderr();
  const auto errors = errors_of(3, {.timeout_s = 2}, [](Context& context) {
    if (context.rank() == 0) {
      const telemetry::OwnWork work(context.status(), "saving a checkpoint");
      sleep_s(7);
    }
    reduce(context);
  });
  const std::string said = testing::internal::GetCapturedStderr();
  for (const int rank : {0, 1, 2}) EXPECT_EQ(errors.at(rank), "");
  EXPECT_THAT(said, HasSubstr("saving a checkpoint"));
  EXPECT_THAT(said, Not(HasSubstr("[rank 2]:"))) << "one of those who wait speaks for all";
}

TEST_P(Liveness, SlowRankExpiresAtSecondDeadline) {
  Meeting told(3);
  testing::internal::CaptureStderr();
  const auto errors = errors_of(3, {.timeout_s = 1, .slow_timeout_s = 2.5}, [&](Context& context) {
    if (context.rank() == 1) {
      const telemetry::OwnWork work(context.status(), "reading from a tape");
      return told.arrive();
    }
    EXPECT_THROW(reduce(context), CommError);
    told.arrive();
    context.world().barrier();
  });
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(errors.at(1), "");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors.at(rank), AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1"), HasSubstr("2.5 s"),
                                       HasSubstr("comm.slow_timeout_s"), HasSubstr("reading from a tape")));
  }
}

TEST_P(Liveness, IdleSilentRankExpiresAtDeadline) {
  Meeting told(2);
  const auto errors = errors_of(2, {.timeout_s = 1.5}, [&](Context& context) {
    context.status().set_action("step 3: dreaming");
    if (context.rank() == 1) return told.arrive();
    auto tensor = at::zeros({64});
    Pending pending = context.world().all_reduce_async(tensor);
    sleep_s(1);  // the error names the configured timeout, not the rest of it
    EXPECT_THROW(pending.wait(), CommError);
    told.arrive();
    context.world().barrier();
  });
  EXPECT_THAT(errors.at(0), AllOf(HasSubstr("all_reduce #1"), HasSubstr("1.5 s"), HasSubstr("rank 1"),
                                  HasSubstr("step 3: dreaming")));
}

TEST_P(Liveness, WaiterForSlowRankIsBlameless) {
  testing::internal::CaptureStderr();
  const auto errors = errors_of(3, {.timeout_s = 2}, [](Context& context) {
    auto tensor = at::full({64}, 1.0);
    if (context.rank() == 2) compute_for_s(6);
    if (context.rank() < 2) context.world().recv(tensor, context.rank() + 1);
    if (context.rank() > 0) context.world().send(tensor, context.rank() - 1);
  });
  const std::string said = testing::internal::GetCapturedStderr();
  for (const int rank : {0, 1, 2}) EXPECT_EQ(errors.at(rank), "");
  EXPECT_THAT(said, HasSubstr("rank 2 (pid "));
  EXPECT_THAT(said, Not(HasSubstr("rank 1 (pid "))) << "it only waits";
}

TEST_P(Liveness, CircularWaitFailsAtDeadlineWithNames) {
  const auto errors = errors_of(3, {.timeout_s = 1}, [](Context& context) {
    auto tensor = at::zeros({64});
    context.world().recv(tensor, (context.rank() + 1) % 3);
  });
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(errors.at(rank), AllOf(HasSubstr("recv"), HasSubstr("wait for each other"))) << rank;
  }
}

/// Rank 1 sends something to rank 0 and leaves. Then ranks 0 and 2 continue.
void go_on_without_rank_1(Context& context, const std::function<void(Context&)>& take) {
  auto tensor = at::full({64}, 1.0);
  if (context.rank() == 0) {
    take(context);
    sleep_s(2);  // time to detect that rank 1 has left
    context.world().send(tensor, 2);
  } else if (context.rank() == 2) {
    context.world().recv(tensor, 0);
  }
}

TEST_P(Liveness, DroppedOperationKeepsPeerDepartureHarmless) {
  run(3, {.timeout_s = 20}, [](Context& context) {
    auto large = at::full({1 << 20}, 1.0);
    if (context.rank() == 1) {
      sleep_s(0.3);  // dropped before it has ended
      context.world().recv(large, 0);
    }
    go_on_without_rank_1(context, [&](Context& me) { me.world().send_async(large, 1); });
  });
}

TEST_P(Liveness, PolledOperationKeepsPeerDepartureHarmless) {
  run(3, {.timeout_s = 20}, [](Context& context) {
    auto large = at::full({1 << 20}, 1.0);
    Pending pending;
    if (context.rank() == 1) context.world().recv(large, 0);
    go_on_without_rank_1(context, [&](Context& me) {
      pending = me.world().send_async(large, 1);
      while (!pending.done()) sleep_s(0.001);
      EXPECT_EQ(me.world().recent_operations().back().state, OperationRecord::State::kDone);
    });
  });
}

TEST_P(Liveness, RankThatSentAllMayLeave) {
  run(2, {.timeout_s = 20}, [](Context& context) {
    auto tensor = at::full({64}, static_cast<double>(context.rank()));
    if (context.rank() == 1) {
      sleep_s(1);  // the receive is older than any grace period when its sender leaves
      context.world().send(tensor, 0);
      return;
    }
    Pending pending = context.world().recv_async(tensor, 1);
    sleep_s(3);
    pending.wait();
    EXPECT_EQ(tensor[63].item<double>(), 1);
  });
}

TEST_P(Liveness, NamesRankThatLeavesWithoutItsPart) {
  const auto body = [](Context& context) {
    auto tensor = at::zeros({64});
    if (context.rank() == 1) return;
    context.world().recv(tensor, 1);
  };
  try {
    run(2, {.timeout_s = 20}, body);
    ADD_FAILURE() << "no error";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("has left")));
  }
}

}  // namespace
}  // namespace trireme::comm
