#include "trireme/parallel/executor.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// The calls of the handlers, and the status at each call.
struct Journal {
  std::vector<std::string> done, shown;

  ActionHandlers handlers() {
    const auto note = [this](const schedule::Action& action) {
      done.push_back(schedule::to_text(action));
      shown.push_back(page->read().action);
    };
    return {.forward = note,
            .backward = note,
            .backward_input = note,
            .backward_weight = note,
            .reduce_grad = note,
            .step = note};
  }
  std::shared_ptr<telemetry::StatusPage> page = telemetry::StatusPage::make_private();
};

TEST(Executor, CallsHandlersInOrderWithStatus) {
  Journal journal;
  Executor executor(schedule::data_parallel(2), 0, journal.handlers(), *journal.page);
  executor.run(7);
  EXPECT_THAT(journal.done, ElementsAre("0F0", "0B0", "0F1", "0B1", "0REDUCE_GRAD", "0STEP"));
  EXPECT_EQ(journal.shown, journal.done);
  EXPECT_EQ(journal.page->read().step, 7U);
}

TEST(Executor, RejectsActionWithoutHandler) {
  Journal journal;
  ActionHandlers without = journal.handlers();
  without.reduce_grad = nullptr;
  EXPECT_THAT([&] { Executor(schedule::data_parallel(1), 0, without, *journal.page); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("0REDUCE_GRAD"), HasSubstr("no handler"))));
  EXPECT_THAT([&] { Executor(schedule::data_parallel(1), 1, journal.handlers(), *journal.page); },
              ThrowsMessage<InvalidArgument>(HasSubstr("there is no rank 1")));
}

TEST(Executor, StopsAtThrowingActionWithStatus) {
  Journal journal;
  ActionHandlers handlers = journal.handlers();
  handlers.backward = [](const schedule::Action&) { throw DataError("no"); };
  Executor executor(schedule::data_parallel(1), 0, handlers, *journal.page);
  EXPECT_THROW(executor.run(1), DataError);
  EXPECT_THAT(journal.done, ElementsAre("0F0"));
  EXPECT_EQ(journal.page->read().action, "0B0");
}

/// Two updates of a stage that never flushes.
schedule::Program updating_twice(int num_updates = 2) {
  schedule::Program program{.name = "twice", .num_stages = 1, .num_microbatches = num_updates, .ranks = {{}}};
  program.update_every = 1;
  program.versions = schedule::WeightVersions::kStashed;
  for (int m = 0; m < num_updates; ++m) {
    for (const auto kind : {schedule::ActionKind::kForward, schedule::ActionKind::kBackward})
      program.ranks[0].push_back({.stage = 0, .kind = kind, .microbatch = m});
    for (const auto kind : {schedule::ActionKind::kReduceGrad, schedule::ActionKind::kStep})
      program.ranks[0].push_back({.stage = 0, .kind = kind});
  }
  return program;
}

TEST(Executor, GoesFromUpdateToUpdateAndRestarts) {
  Journal journal;
  Executor executor(updating_twice(), 0, journal.handlers(), *journal.page);
  EXPECT_TRUE(executor.run_to_update(1));
  EXPECT_THAT(journal.done, ElementsAre("0F0", "0B0", "0REDUCE_GRAD", "0STEP"));
  EXPECT_FALSE(executor.at_end());
  EXPECT_TRUE(executor.run_to_update(2));
  EXPECT_TRUE(executor.at_end());
  EXPECT_FALSE(executor.run_to_update(3)) << "nothing is left";
  executor.restart();
  EXPECT_TRUE(executor.run_to_update(4));
  EXPECT_EQ(journal.done.size(), 12U);
}

TEST(Executor, ContinuesWithMatchingPrefixOnly) {
  Journal journal;
  Executor executor(updating_twice(3), 0, journal.handlers(), *journal.page);
  executor.run_to_update(1);
  executor.replace(updating_twice(2));
  EXPECT_TRUE(executor.run_to_update(2));
  EXPECT_TRUE(executor.at_end());
  EXPECT_THROW(executor.replace(updating_twice(1)), InternalError);
}

}  // namespace
}  // namespace trireme::parallel
