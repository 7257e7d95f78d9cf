#include "trireme/train/run/internal/held_run.h"

#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include "tests/unit/train/frozen_model.h"
#include "tests/unit/train/small_runs.h"

namespace trireme::train {
namespace {

/// A run of one rank whose model has running statistics.
class HeldRunOfOneRank : public SmallRuns {
 protected:
  void with_run(const std::function<void(Trainer&, HeldRun&, RunMemory&)>& body) const {
    comm::run_ranks_as_threads(1, [&](comm::Context& context) {
      RunConfig settings = config("held");
      const data::DataSource data = data::open_data(settings.data);
      const auto inputs = data.train->trial_batch(1).input.at(0).flatten(1).size(1);
      Trainer trainer(settings, context, data, std::make_shared<test::FrozenNormModel>(inputs, 10));
      RunMemory memory;
      const Progress progress;
      HeldRun held(memory, trainer, progress, context);
      body(trainer, held, memory);
    });
  }

  static at::Tensor mean_of(Trainer& trainer) {
    return trainer.model().named_buffers()["block.norm.running_mean"];
  }
  static at::Tensor held_mean(const RunMemory& memory) {
    const checkpoint::HeldState state = memory.states().at(0);
    for (const checkpoint::Shard& shard : state.shards) {
      if (shard.name == "block.norm.running_mean") return shard.tensor;
    }
    throw std::runtime_error("no running mean is held");
  }
};

TEST_F(HeldRunOfOneRank, FinishedStepHasItsRunningStatistics) {
  with_run([](Trainer& trainer, HeldRun& held, RunMemory& memory) {
    held.before_step();
    trainer.step();
    held.keep_own();
    EXPECT_EQ(memory.states().at(0).step, 1);
    EXPECT_TRUE(held_mean(memory).equal(mean_of(trainer)));
    EXPECT_FALSE(held_mean(memory).equal(at::zeros_like(held_mean(memory))));
  });
}

TEST_F(HeldRunOfOneRank, AbortedStepLeavesStatistics) {
  with_run([](Trainer& trainer, HeldRun& held, RunMemory& memory) {
    held.before_step();
    trainer.step();
    held.before_step();
    const at::Tensor before = mean_of(trainer).clone();
    trainer.model().forward(trainer.data().train->trial_batch(8).input.at(0));
    ASSERT_FALSE(mean_of(trainer).equal(before)) << "the forward changes them";
    held.keep_own();
    EXPECT_EQ(memory.states().at(0).step, 1);
    EXPECT_TRUE(held_mean(memory).equal(before));
  });
}

TEST_F(HeldRunOfOneRank, AbortedUpdateIsNoState) {
  with_run([](Trainer& trainer, HeldRun& held, RunMemory& memory) {
    trainer.on_gradients([](const optim::NamedTensors&) { throw std::runtime_error("in the update"); });
    held.before_step();
    EXPECT_THROW(trainer.step(), std::exception);
    held.keep_own();
    EXPECT_THAT(memory.states(), testing::IsEmpty());
  });
}

}  // namespace
}  // namespace trireme::train
