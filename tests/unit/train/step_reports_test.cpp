#include "trireme/train/step/step_reports.h"

#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(StepReports, SumLossesAndArriveStepLater) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    StepReports reports(context.world());
    EXPECT_FALSE(reports.finish().has_value());
    EXPECT_FALSE(reports.start({.step = 1, .loss = 0.5 * context.rank(), .samples = 32}).has_value());
    const auto first = reports.start({.step = 2, .loss = 1});
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->step, 1);
    EXPECT_EQ(first->loss, 1.5);
    EXPECT_EQ(first->samples, 32);
    EXPECT_EQ(reports.finish()->loss, 3);
    EXPECT_FALSE(reports.finish().has_value());
  });
}

TEST(StepReports, CollectWorkTimesOfAllRanks) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    StepReports reports(context.world());
    reports.start({.step = 1, .work_s = {0.25 * context.rank()}});
    EXPECT_EQ(reports.finish()->work_s, (std::vector<double>{0, 0.25, 0.5}));
  });
}

TEST(StepReports, KeepPendingExchangesWithinDepth) {
  comm::run_ranks_as_threads(2, [](comm::Context& context) {
    StepReports reports(context.world(), 3);
    for (int step = 1; step <= 3; ++step) EXPECT_FALSE(reports.start({.step = step}).has_value());
    EXPECT_EQ(reports.start({.step = 4})->step, 1);
    for (int step = 2; step <= 4; ++step) EXPECT_EQ(reports.finish()->step, step);
  });
}

TEST(StepReports, BundlesArriveCompleteAndInOrder) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    StepReports reports(context.world(), 2, Bundling::kByTime);
    std::int64_t next = 1;
    const auto take = [&](const std::optional<StepReport>& report) {
      if (!report) return false;
      EXPECT_EQ(report->step, next++);
      EXPECT_EQ(report->loss, 2) << "(0 + 1 + 2) * 2 of a count of 3";
      EXPECT_EQ(report->count, 3);
      return true;
    };
    for (std::int64_t step = 1; step <= 500; ++step) {
      take(reports.start({.step = step, .loss = 2.0 * context.rank(), .own_count = 1}));
      // At a step with a read, the reports include the last step.
      if (step % 150 != 0) continue;
      while (take(reports.finish())) {
      }
      EXPECT_EQ(next, step + 1);
    }
    while (take(reports.finish())) {
    }
    EXPECT_EQ(next, 501);
  });
}

TEST(StepReports, BundleNamesStepWithNonFiniteLoss) {
  comm::run_ranks_as_threads(2, [](comm::Context& context) {
    StepReports reports(context.world(), 2, Bundling::kByTime);
    std::int64_t last = 0;
    const auto train = [&] {
      for (std::int64_t step = 1; step <= 200; ++step) {
        const bool fails = step == 123 && context.rank() == 1;
        const auto report = reports.start({.step = step, .loss = fails ? kNan : 1});
        if (report) last = report->step;
      }
      while (const auto report = reports.finish()) last = report->step;
    };
    EXPECT_THAT(train, ThrowsMessage<DivergedError>(AllOf(HasSubstr("step 123:"), HasSubstr("on rank 1"))));
    EXPECT_EQ(last, 122) << "those before it are told";
  });
}

TEST(StepReports, TellEveryRankOfStopRequest) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    StepReports reports(context.world());
    const auto signal_where = [&](int rank, int signal) {
      reports.start({.step = 1, .stop_signal = context.rank() == rank ? signal : 0});
      return reports.finish()->stop_signal;
    };
    EXPECT_EQ(signal_where(2, SIGINT), SIGINT);
    EXPECT_EQ(signal_where(0, SIGTERM), SIGTERM);
    EXPECT_EQ(signal_where(-1, 0), 0) << "an old request is not told again";
    reports.start({.step = 1, .stop_signal = context.rank() == 0 ? SIGINT : SIGTERM});
    EXPECT_EQ(reports.finish()->stop_signal, SIGTERM) << "the stronger one";
  });
}

TEST(StepReports, TellEveryRankOfDataWaits) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    StepReports reports(context.world());
    const std::string_view stages[] = {"", "read", "decode"};
    const auto rank = static_cast<std::size_t>(context.rank());
    reports.start({.step = 1, .data_waits = {{.seconds = 0.5 * context.rank(), .stage = stages[rank]}}});
    const auto told = reports.finish();
    ASSERT_EQ(told->data_waits.size(), 3U);
    for (std::size_t each = 0; each < 3; ++each) {
      EXPECT_EQ(told->data_waits[each].seconds, 0.5 * static_cast<double>(each));
      EXPECT_EQ(told->data_waits[each].stage, stages[each]);
    }
  });
}

TEST(StepReports, NonFiniteValuesNameStepAndRanks) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    StepReports reports(context.world());
    reports.start({.step = 4, .loss = context.rank() == 1 ? kNan : 1, .lr = 0.25});
    EXPECT_THAT([&] { reports.finish(); },
                ThrowsMessage<DivergedError>(
                    AllOf(HasSubstr("step 4"), HasSubstr("on rank 1 "), HasSubstr("learning rate 0.25"))));
    reports.start({.step = 5, .loss = 1, .grad_norm = context.rank() == 0 ? 1 : INFINITY});
    EXPECT_THAT([&] { reports.finish(); }, ThrowsMessage<DivergedError>(HasSubstr("on rank 1, 2")));
    reports.start({.step = 6, .loss = 1});
    EXPECT_EQ(reports.finish()->loss, 3) << "what has been told is over";
  });
}

TEST(StepReports, SkippedStepMayHaveNonFiniteLoss) {
  comm::run_ranks_as_threads(2, [](comm::Context& context) {
    StepReports reports(context.world());
    reports.start({.step = 1, .loss = context.rank() == 1 ? kNan : 1, .skipped = true});
    const auto report = reports.finish();
    EXPECT_TRUE(report->skipped);
    EXPECT_TRUE(std::isnan(report->loss)) << "the mean of the batch is not known";
  });
}

}  // namespace
}  // namespace trireme::train
