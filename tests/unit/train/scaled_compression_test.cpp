// Compressed gradients with train.precision = "fp16". Every compression converges, an overflowing step leaves
// nothing in the residuals, and a resumed run has the same bits.

#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <limits>
#include <map>

#include "tests/support/trainer_state.h"
#include "tests/unit/train/compressed_runs.h"
#include "trireme/data/dataset.h"
#include "trireme/model/initialise.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

constexpr std::int64_t kOverflow = 7;  ///< the step whose gradients are not finite

/// A model whose loss is infinite once on one rank.
struct Overflowing : model::Model {
  explicit Overflowing(bool overflows)
      : first(register_module("first", torch::nn::Linear(784, 32))),
        second(register_module("second", torch::nn::Linear(32, 10))),
        overflows_here(overflows) {
    model::initialise(*this, 7);
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor outputs = second(first(x.flatten(1)).tanh());
    const bool is_now = is_training() && at::GradMode::is_enabled() && ++forwards == kOverflow;
    return is_now && overflows_here ? outputs * std::numeric_limits<float>::infinity() : outputs;
  }
  torch::nn::Linear first, second;
  const bool overflows_here;
  int forwards = 0;
};

struct ScaledCase {
  std::string compression;
  std::int64_t zero = 0;
};

class ScaledCompression : public CompressedTraining, public testing::WithParamInterface<ScaledCase> {
 protected:
  RunConfig scaled(const std::string& name, const std::string& precision) const {
    RunConfig result = compressed(name, GetParam().compression);
    result.train.max_steps = 12;
    result.train.precision = precision;
    result.train.non_finite = "skip";
    result.scaler = {.initial = 4096, .interval = 3};  // the scale grows and falls within the run
    result.parallel.zero = GetParam().zero;
    result.parallel.keep_gradients = GetParam().compression == "dgc" && GetParam().zero > 1;
    return result;
  }
};

std::vector<ScaledCase> scaled_cases() {
  std::vector<ScaledCase> cases;
  for (const std::string& compression : test::lossy_compressions()) {
    cases.push_back({compression, 0});
    if (compression == "one-bit") continue;
    cases.push_back({compression, 1});
    cases.push_back({compression, 2});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Table, ScaledCompression, testing::ValuesIn(scaled_cases()), [](const auto& row) {
  std::string name = text(row.param.compression, "Zero", row.param.zero);
  std::erase(name, '-');
  return name;
});

std::map<std::string, at::Tensor> copies_of(const checkpoint::Shards& state) {
  std::map<std::string, at::Tensor> copies;
  for (const checkpoint::Shard& shard : state) copies[shard.name] = shard.tensor.clone();
  return copies;
}

struct ScaledOutcome {
  std::map<std::string, at::Tensor> weights;
  std::int64_t skipped = 0;
  std::vector<double> scales;
};

TEST_P(ScaledCompression, TrainsLikeF32AndDropsOverflowedStep) {
  const auto trained = [&](const std::string& precision) {
    const RunConfig config = scaled(precision, precision);
    const data::DataSource data = data::open_data(config.data);
    ScaledOutcome outcome;
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      Trainer trainer(config, context, data, std::make_shared<Overflowing>(context.rank() == 1));
      ScaledOutcome mine;
      std::map<std::string, at::Tensor> kept;
      while (!trainer.finished()) {
        if (const auto report = trainer.step()) {
          mine.skipped += report->skipped ? 1 : 0;
          mine.scales.push_back(report->loss_scale.value_or(1));
        }
        auto now = copies_of(test::state_under(trainer, "optimizer/compression/"));
        for (const auto& [name, tensor] : now) {
          EXPECT_TRUE(at::isfinite(tensor).all().item<bool>()) << name << ", step " << trainer.steps_done();
          if (trainer.steps_done() != kOverflow) continue;
          EXPECT_TRUE(at::equal(tensor, kept.at(name))) << name;
        }
        kept = std::move(now);
      }
      mine.skipped += trainer.last_report()->skipped ? 1 : 0;
      trainer.evaluate();  // gathers the updated weights
      for (const auto& [name, tensor] : trainer.pipeline().weights())
        mine.weights[name] = tensor.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
      if (context.is_main()) outcome = std::move(mine);
    });
    return outcome;
  };
  const ScaledOutcome f32 = trained("fp32"), fp16 = trained("fp16");
  EXPECT_EQ(f32.skipped, 1);
  EXPECT_EQ(fp16.skipped, 1);
  EXPECT_LT(*std::ranges::min_element(fp16.scales), *std::ranges::max_element(fp16.scales));
  // fp16 has 11 significant bits. Random choices, selections and signs may differ for some elements. Adam
  // moves elements with small gradients as far as others, and rounding is a large part of small gradients.
  const double bound = GetParam().compression == "one-bit" ? 0.05 : 0.02;
  for (const auto& [name, weights] : f32.weights) {
    const at::Tensor moved = weights - fp16.weights.at(name);
    EXPECT_LE(moved.norm().item<double>(), bound * weights.norm().item<double>()) << name;
  }
}

/// Gathered weights are rounded, and gradients stay f32.
TEST_F(CompressedTraining, ShardedBf16GradientsAreCompressed) {
  for (const char* compression : {"int8", "top-k", "dgc"}) {
    RunConfig config = compressed(text("bf16 ", compression), compression);
    config.train.precision = "bf16";
    config.parallel.zero = 1;
    EXPECT_EQ(run(2, config).steps, 12) << compression;
  }
}

class ScaledCompressionRuns : public CompressedTraining, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, ScaledCompressionRuns, testing::ValuesIn(test::lossy_compressions()),
                         test::name_of_codec);

TEST_P(ScaledCompressionRuns, ContinueFromCheckpointWithSameBits) {
  RunConfig whole = compressed("whole", GetParam()), part = compressed("part", GetParam());
  for (RunConfig* each : {&whole, &part}) {
    each->train.precision = "fp16";
    each->scaler = {.initial = 16777216, .interval = 3};  // the scale falls in the first steps
  }
  const std::string expected = run(2, whole).weights_xxh3;
  EXPECT_GT(num_lines(file("whole", "metrics.jsonl"), "\"skipped\":"), 0U);
  part.train.max_steps = 6;
  run(2, part);
  part.train.max_steps = 12;
  EXPECT_EQ(run(2, part, RunStart::kResume).weights_xxh3, expected);
}

}  // namespace
}  // namespace trireme::train
