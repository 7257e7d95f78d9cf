// parallel.mode = "ps": ranks push gradients to a parameter server, which updates the weights.

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/codecs.h"
#include "tests/unit/ps/real_cluster.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ServedRuns : public SmallRuns {
 protected:
  RunConfig served(const std::string& name, std::int64_t staleness = 0) const {
    RunConfig result = config(name);
    result.parallel.mode = "ps";
    result.served = {.coordinator = servers_.address(), .staleness = staleness};
    result.train.clip_norm = 0;
    result.comm.timeout_s = 30;
    return result;
  }

  /// The weights after a run over two ranks, joined in one vector.
  static std::vector<float> trained(RunConfig config, int ranks = 2) {
    const data::DataSource data = open_data(config, Log());
    std::vector<float> values;
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      Trainer trainer(config, context, data);
      while (!trainer.finished()) trainer.step();
      trainer.synchronize();
      if (!context.is_main()) return;
      for (const auto& [name, parameter] : trainer.parameters()) {
        const at::Tensor flat = parameter.detach().contiguous();
        values.insert(values.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
      }
    });
    return values;
  }

  ps::RealCluster servers_{2};
};

struct Rule {
  const char* optimizer;
  double momentum = 0;
  bool nesterov = false, decay_1d = true;
};
std::ostream& operator<<(std::ostream& out, const Rule& rule) {
  return out << rule.optimizer
             << (rule.nesterov       ? "Nesterov"
                 : rule.momentum > 0 ? "Momentum"
                                     : "")
             << (rule.decay_1d ? "" : "SparesBiases");
}

class ServedOptimizers : public ServedRuns, public testing::WithParamInterface<Rule> {};

TEST_P(ServedOptimizers, TrainLikeRanksWithLocalUpdates) {
  RunConfig own = config("own");
  own.train.clip_norm = 0;
  const Rule& rule = GetParam();
  own.optimizer = {.name = rule.optimizer,
                   .lr = 0.01,
                   .weight_decay = 0.1,
                   .decay_1d = rule.decay_1d,
                   .momentum = rule.momentum,
                   .nesterov = rule.nesterov};
  own.learning_rate.schedule = "cosine";
  own.learning_rate.warmup_steps = 3;
  RunConfig ps = served("ps");
  ps.optimizer = own.optimizer;
  ps.learning_rate = own.learning_rate;
  const std::vector<float> expected = trained(own), found = trained(ps);
  ASSERT_EQ(found.size(), expected.size());
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    largest = std::max<double>(largest, std::abs(found[i] - expected[i]));
  EXPECT_LT(largest, 2e-6);
  // Again under that name: it starts from the beginning, and sums are in rank order.
  EXPECT_EQ(trained(ps), found);
}

INSTANTIATE_TEST_SUITE_P(Of, ServedOptimizers,
                         testing::Values(Rule{"sgd"}, Rule{"sgd", 0.9}, Rule{"sgd", 0.9, true},
                                         Rule{"sgd", 0.9, false, false}, Rule{"adam"}, Rule{"adamw"},
                                         Rule{"adagrad"}, Rule{"rmsprop", 0.9}),
                         testing::PrintToStringParamName());

TEST_F(ServedRuns, ServerThatEndsMidRunChangesNothing) {
  const RunResult undisturbed = run(2, served("undisturbed"));
  ASSERT_EQ(undisturbed.status, "completed");
  bool has_ended = false;
  callbacks_.on_step = [&](const StepReport& report) {
    if (report.step < 4 || std::exchange(has_ended, true)) return;
    servers_.end_server(0);
  };
  const RunResult disturbed = run(2, served("disturbed"));
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(disturbed.weights_xxh3, undisturbed.weights_xxh3);
}

TEST_F(ServedRuns, ContinueBitwiseOverNewServers) {
  const RunResult straight = run(2, served("straight"));
  RunConfig half = served("half");
  half.train.max_steps = 6;
  run(2, half);
  ps::RealCluster others(1);
  half.train.max_steps = 12;
  half.served.coordinator = others.address();
  EXPECT_EQ(run(2, half, RunStart::kResume).weights_xxh3, straight.weights_xxh3);
}

TEST_F(ServedRuns, CheckpointsContinueWithAndWithoutServers) {
  const auto finish = [&](const std::string& name, const RunConfig& first, RunConfig second) {
    RunConfig begun = first;
    begun.run.name = second.run.name = name;
    begun.train.max_steps = 6;
    run(2, begun);
    const RunResult result = run(2, second, RunStart::kResume);
    return result.train_loss;
  };
  RunConfig own = config("own");
  own.train.clip_norm = 0;
  const double there = finish("there", served("ps"), own), back = finish("back", own, served("ps")),
               straight = finish("straight", own, own);
  EXPECT_NEAR(there, straight, 1e-5);
  EXPECT_NEAR(back, straight, 1e-5);
}

TEST_F(ServedRuns, DriftingRanksAgreeAtEvaluation) {
  for (const std::int64_t staleness : {1, 5, -1}) {
    RunConfig config = served(text("drift", staleness), staleness);
    config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0};
    config.train.epochs = 6;
    config.train.max_steps = 0;
    const RunResult result = run(2, config);
    EXPECT_EQ(result.status, "completed");
    EXPECT_GT(result.evaluation->metric("accuracy").value, 0.8) << staleness;
    const std::string metrics = file(config.run.name, "metrics.jsonl");
    EXPECT_EQ(num_lines(metrics, "\"event\":\"step\""), num_lines(metrics, "\"staleness\":"));
    EXPECT_GT(num_lines(metrics, "\"staleness\":"), 0U);
    if (staleness == 1) {
      EXPECT_EQ(num_lines(metrics, "\"staleness\":2"), 0U);
    }
  }
}

/// The state from which a trainer would resume.
struct Kept {
  explicit Kept(Trainer& trainer) : step(trainer.steps_done()) {
    trainer.complete_state();
    for (const auto& [name, tensor] : all_of(trainer)) values.push_back(tensor.clone());
  }
  void restore(Trainer& trainer) const {
    const at::NoGradGuard no_grad;
    const auto tensors = all_of(trainer);
    for (std::size_t i = 0; i < tensors.size(); ++i) at::Tensor(tensors[i].second).copy_(values[i]);
    trainer.seek(step);
  }
  static optim::NamedTensors all_of(Trainer& trainer) {
    optim::NamedTensors all;
    for (const checkpoint::Shard& shard : shards_of(trainer.state()))
      all.emplace_back(shard.name, shard.tensor);
    return all;
  }
  std::int64_t step;
  std::vector<at::Tensor> values;
};

TEST_F(ServedRuns, RejectAbortedStepUntilRestore) {
  RunConfig config = served("broken_off");
  config.optimizer.momentum = 0.9;
  const data::DataSource data = open_data(config, Log());
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Trainer trainer(config, context, data);
    for (int i = 0; i < 3; ++i) trainer.step();
    const Kept kept(trainer);
    const auto two_more = [&] {
      trainer.step();
      trainer.step();
      trainer.synchronize();
      return Kept(trainer).values;
    };
    const std::vector<at::Tensor> expected = two_more();
    trainer.on_gradients([](const auto&) { throw std::runtime_error("a hook of the program's"); });
    EXPECT_THROW(trainer.step(), std::runtime_error);
    trainer.on_gradients(nullptr);
    try {
      trainer.step();
      ADD_FAILURE() << "it went on";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("broken off"), HasSubstr("resume from a checkpoint")));
    }
    kept.restore(trainer);
    const std::vector<at::Tensor> found = two_more();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  });
}

TEST_F(ServedRuns, CompensateDelaysOfSeveralRanksOnly) {
  const auto weights = [&](int ranks, double compensation) {
    RunConfig config = served("late", -1);
    config.served.delay_compensation = compensation;
    config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0};
    return run(ranks, config).weights_xxh3;
  };
  EXPECT_EQ(weights(1, 100), weights(1, 0)) << "its values are those that it meets";
  EXPECT_EQ(run(2,
                [&] {
                  RunConfig config = served("two_late", 5);
                  config.served.delay_compensation = 0.1;
                  config.train.epochs = 6;
                  config.train.max_steps = 0;
                  config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0};
                  return config;
                }())
                .status,
            "completed");
}

TEST_F(ServedRuns, LearnEquallyWithCompressedPushes) {
  const auto learned = [&](const std::string& compression) {
    RunConfig config = served("compressed");
    config.parallel.compression = compression;
    config.parallel.compression_fraction = 0.1;
    config.train.epochs = 6;
    config.train.max_steps = 0;
    config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0};
    return run(2, config);
  };
  const std::string plain = learned("none").weights_xxh3;
  for (const std::string& compression : test::all_codecs()) {
    const RunResult once = learned(compression);
    EXPECT_GT(once.evaluation->metric("accuracy").value, 0.8) << compression;
    EXPECT_NE(once.weights_xxh3, plain) << compression << " rounds nothing";
    EXPECT_EQ(learned(compression).weights_xxh3, once.weights_xxh3) << compression;
  }
}

TEST_F(ServedRuns, DropResidualsOnRestore) {
  RunConfig config = served("left_out");
  config.parallel.compression = "top-k";
  const data::DataSource data = open_data(config, Log());
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Trainer trainer(config, context, data);
    const Kept begin(trainer);
    const auto two_steps = [&] {
      begin.restore(trainer);
      trainer.step();
      trainer.step();
      return Kept(trainer).values;
    };
    const std::vector<at::Tensor> expected = two_steps(), found = two_steps();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  });
}

TEST_F(ServedRuns, VerifyFindsThemEqualToOneRank) {
  RunConfig config = served("verified");
  config.train.max_steps = 5;
  const ParallelPlan plan = resolve_plan(config, 2);
  const data::DataSource data = open_data(config, Log());
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Comparison verdict = verify(plan, context, data, 5);
    if (context.is_main()) {
      EXPECT_TRUE(verdict.equal()) << verdict.first()->describe();
    }
  });
}

TEST_F(ServedRuns, NameUnsupportedOptionsAndWorkingPlan) {
  const auto refusal = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig config = served("refused");
    change(config);
    try {
      resolve_plan(config, 2);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_THAT(refusal([](RunConfig& c) { c.train.clip_norm = 0.5; }),
              AllOf(HasSubstr("no rank has the sum of all gradients"), HasSubstr("train.clip_norm = 0.0")));
  EXPECT_THAT(refusal([](RunConfig& c) { c.optimizer.name = "lamb"; }),
              AllOf(HasSubstr("servers have sgd"), HasSubstr("optimizer.name = \"adamw\"")));
  EXPECT_THAT(refusal([](RunConfig& c) { c.parallel.zero = 2; }), HasSubstr("parallel.zero = 0"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.parallel.pipeline = 2; }), HasSubstr("parallel.mode"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.train.precision = "fp16"; }), HasSubstr("bf16"));
  EXPECT_THAT(
      refusal([](RunConfig& c) { c.parallel.compression = "power-sgd"; }),
      AllOf(HasSubstr("for gradients that ranks reduce"), HasSubstr("parallel.compression = \"int8\"")));
  EXPECT_THAT(refusal([](RunConfig& c) { c.train.ema_decay = 0.9; }), HasSubstr("train.ema_decay = 0.0"));
}

TEST_F(ServedRuns, SayWhereServersWouldHaveToBe) {
  RunConfig config = served("nowhere");
  config.served.coordinator = "";
  try {
    run(1, config);
    FAIL() << "nobody serves";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--servers N"), HasSubstr("ps.coordinator")));
  }
}

}  // namespace
}  // namespace trireme::train
