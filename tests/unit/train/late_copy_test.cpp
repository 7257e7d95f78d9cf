// A checkpoint is copied during training, at the latest when Trainer::before_changes() is called. Here each
// copy is made that late: after the next forward and backward. A run that resumes from it has the same bits,
// although forward and backward change parts of the state.

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>

#include "tests/unit/train/compressed_runs.h"
#include "tests/unit/train/frozen_model.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/run/run_folder.h"

namespace trireme::train {
namespace {

constexpr int kSavedStep = 6, kRanks = 3;

struct LateMode {
  std::string name;
  std::function<void(RunConfig&)> set;
  bool has_buffers = false;
};
std::ostream& operator<<(std::ostream& out, const LateMode& mode) { return out << mode.name; }

std::vector<LateMode> late_modes() {
  return {
      {"ReducedAsTheyAre", [](RunConfig&) {}},
      {"MovingAverageAndNoise",
       [](RunConfig& c) {
         c.train.ema_decay = 0.9;
         c.train.noise_scale_every_steps = 1;
         c.parallel.compression = "none";
       }},
      {"ScaledLosses",
       [](RunConfig& c) {
         c.train.precision = "fp16";
         c.parallel.compression = "none";
       }},
      {"RateOnPlateau",
       [](RunConfig& c) {
         c.learning_rate.schedule = "reduce_on_plateau";
         c.eval.every_steps = 1;
       }},
      {"ByNeed",
       [](RunConfig& c) {
         c.parallel.priority = "forward";
         c.train.clip_norm = 0;
       }},
      {"SitesWithDelay",
       [](RunConfig& c) {
         c.parallel.local_steps = 4;
         c.parallel.local_fragments = 2;
         c.parallel.local_delay = 1;
         c.parallel.outer_optimizer = "nesterov";
       }},
      {"StateInFiles", [](RunConfig& c) { c.offload.optimizer = "files"; }},
      {"BatchNorm", [](RunConfig&) {}, /*has_buffers=*/true},
      {"Shards", [](RunConfig& c) { c.parallel.zero = 3; }},
      {"ShardsOfFewerBytes",
       [](RunConfig& c) {
         c.parallel.zero = 3;
         c.parallel.weight_compression = "int8";
       }},
      {"Pipeline", [](RunConfig& c) { c.parallel.pipeline = 3; }},
      {"PipelineWithoutFlush",
       [](RunConfig& c) {
         c.parallel.pipeline = 3;
         c.parallel.schedule = "pipedream";
         c.train.clip_norm = 0;
         c.checkpoint.every_steps = kSavedStep;
       }},
  };
}

/// Compressions whose state changes in every backward, on replicas and with sharded gradients.
std::vector<LateMode> late_compressions() {
  std::vector<LateMode> modes;
  for (const std::string& compression : test::lossy_compressions()) {
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      if (compression == "one-bit" && zero > 0) continue;  // the combination is rejected
      std::string name = text(compression, "Zero", zero);
      std::erase(name, '-');
      modes.push_back({name, [=](RunConfig& c) {
                         c.parallel.compression = compression;
                         c.parallel.zero = zero;
                         c.parallel.keep_gradients = compression == "dgc" && zero > 1;
                       }});
    }
  }
  return modes;
}

class LateCopy : public CompressedTraining, public testing::WithParamInterface<LateMode> {
 protected:
  RunConfig mode() const {
    RunConfig set;
    GetParam().set(set);
    RunConfig result = compressed("run", set.parallel.compression);
    result.model.hidden = {32, 16};
    result.train.global_batch = 510;
    result.train.max_steps = 10;
    result.comm.timeout_s = 60;
    GetParam().set(result);
    return result;
  }

  using Values = std::map<std::string, at::Tensor>;
  /// Buffers are those of rank 0.
  static Values values_of(Trainer& trainer, bool is_main) {
    trainer.complete_state();
    Values values;
    std::set<std::string> buffers;
    for (const auto& [name, buffer] : trainer.buffers()) buffers.insert(name);
    for (const checkpoint::Shard& shard : state_to_save(trainer, {}))
      if (is_main || !buffers.contains(shard.name))
        values[text(shard.name, checkpoint::describe(shard.box()))] =
            shard.place_of(shard.box()).values().clone();
    return values;
  }

  void on_ranks(const RunConfig& config, const std::function<void(comm::Context&, Trainer&)>& work) const {
    std::vector<std::shared_ptr<model::Model>> own(kRanks);
    at::manual_seed(3);  // of the models of all ranks, so that each run starts with the same values
    for (auto& each : own) {
      if (GetParam().has_buffers) each = std::make_shared<test::FrozenNormModel>(28 * 28, 10);
    }
    comm::run_ranks_as_threads(kRanks, [&](comm::Context& context) {
      const data::DataSource data = open_data(config, context.log());
      Trainer trainer(config, context, data, own[static_cast<std::size_t>(context.rank())]);
      work(context, trainer);
    });
  }

  /// Trains up to step `steps`, with evaluations where they are due.
  static void train_to(Trainer& trainer, std::int64_t steps) {
    while (trainer.steps_done() < steps) {
      trainer.step();
      if (trainer.step_schedule().evaluates(trainer.steps_done())) trainer.evaluate();
    }
    while (trainer.last_report()) {
    }
  }

  /// Saves step kSavedStep. Each tensor is copied just before it may change.
  void save_late(const RunConfig& config) const {
    on_ranks(config, [&](comm::Context& context, Trainer& trainer) {
      train_to(trainer, kSavedStep);
      trainer.complete_state();
      const Progress progress;
      const std::vector<bool> all_see(kRanks, true);
      checkpoint::SaveShares shares(context.world(), state_to_save(trainer, progress), all_see);
      std::optional<checkpoint::CheckpointPart> part =
          snapshot_of(trainer, shares, progress, trainer.plan().config());
      bool is_copied = false;
      trainer.before_changes([&] {
        if (!part || std::exchange(is_copied, true)) return;
        for (checkpoint::Shard& shard : part->shards) {
          shard.tensor = shard.place_of(shard.box()).values().clone();
          shard.offloaded_storage = nullptr;
        }
      });
      train_to(trainer, config.train.max_steps);
      EXPECT_EQ(is_copied, part.has_value());
      checkpoint::save_together(context.world(), part, RunFolder{config.run_folder()}.checkpoints(), 1);
    });
  }

  /// Values of each rank at the end of a run that resumes or not.
  std::vector<Values> at_the_end(const RunConfig& config, ResumeMode resume_mode) const {
    std::vector<Values> values(kRanks);
    on_ranks(config, [&](comm::Context& context, Trainer& trainer) {
      Progress progress;
      resume({trainer, progress, std::vector<bool>(kRanks, true)}, context, resume_mode);
      EXPECT_EQ(trainer.steps_done(), resume_mode == ResumeMode::kNever ? 0 : kSavedStep);
      train_to(trainer, config.train.max_steps);
      values[static_cast<std::size_t>(context.rank())] = values_of(trainer, context.is_main());
    });
    return values;
  }
};

TEST_P(LateCopy, ContinuesWithTheSameBits) {
  const RunConfig config = mode();
  const std::vector<Values> expected = at_the_end(config, ResumeMode::kNever);
  save_late(config);
  const std::vector<Values> found = at_the_end(config, ResumeMode::kRequired);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    ASSERT_EQ(found[at].size(), expected[at].size());
    for (const auto& [name, value] : expected[at])
      EXPECT_TRUE(found[at].at(name).equal(value)) << name << " on rank " << rank;
  }
}
INSTANTIATE_TEST_SUITE_P(Modes, LateCopy, testing::ValuesIn(late_modes()), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Compressions, LateCopy, testing::ValuesIn(late_compressions()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace trireme::train
