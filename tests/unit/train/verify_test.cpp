// verify() reports equality if the parallel run is right. Each kind of fault is detected and named.
#include "trireme/train/run/verify.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "tests/unit/train/tied_model.h"
#include "tests/unit/train/verified_run.h"
#include "trireme/base/error.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

/// The verdict of rank 0.
Comparison verdict_on(int ranks, const RunConfig& config) {
  std::optional<Comparison> verdict;
  std::mutex mutex;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    const Comparison mine = verify(config, context, verified_data(), 3);
    const std::lock_guard lock(mutex);
    if (context.is_main()) verdict = mine;
  });
  return *verdict;
}

struct Case {
  const char* name;
  int ranks = 2;
  std::int64_t accumulation = 1;
  const char* model = "mlp";
  const char* optimizer = "sgd";
  const char* precision = "fp32";
  const char* compression = "none";
  bool bitwise = false;
};

std::ostream& operator<<(std::ostream& out, const Case& row) { return out << row.name; }

class EqualRuns : public testing::TestWithParam<Case> {};

TEST_P(EqualRuns, AreFoundEqual) {
  RunConfig config = verified_config();
  config.model.name = GetParam().model;
  config.train.accumulation = GetParam().accumulation;
  config.train.precision = GetParam().precision;
  config.optimizer.name = GetParam().optimizer;
  config.optimizer.lr = 0.01;
  config.parallel.compression = GetParam().compression;
  const Comparison verdict = verdict_on(GetParam().ranks, config);
  EXPECT_TRUE(verdict.equal()) << verdict.first()->describe() << "; " << verdict.bounds().reason;
  EXPECT_EQ(verdict.bitwise(), GetParam().bitwise) << verdict.largest().describe();
}

INSTANTIATE_TEST_SUITE_P(
    Table, EqualRuns,
    testing::Values(Case{.name = "TwoRanks", .bitwise = true},
                    Case{.name = "FourRanks", .ranks = 4, .bitwise = true},
                    Case{.name = "Accumulation", .ranks = 2, .accumulation = 3},
                    Case{.name = "OneRankTwoMicrobatches", .ranks = 1, .accumulation = 2, .bitwise = true},
                    Case{.name = "Cnn", .ranks = 3, .model = "cnn", .bitwise = true},
                    Case{.name = "AdamW", .ranks = 4, .optimizer = "adamw", .bitwise = true},
                    Case{.name = "AdamWAccumulation", .ranks = 2, .accumulation = 2, .optimizer = "adamw"},
                    Case{.name = "Bf16", .ranks = 4, .precision = "bf16", .bitwise = true},
                    Case{.name = "CompressedGradients", .ranks = 2, .compression = "bf16"},
                    Case{.name = "GradientsOfHalves", .ranks = 2, .compression = "fp16"}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(Verify, CrossesEpochsWithDroppedLastBatch) {
  RunConfig config = verified_config();
  config.train.epochs = 4;
  config.train.global_batch = 60;  // one step of an epoch of 96 samples
  config.data.drop_last = true;
  for (const char* balance : {"count", "cost", "dynamic"}) {
    config.data.balance = balance;
    const Comparison verdict = verdict_on(2, config);
    EXPECT_TRUE(verdict.equal()) << balance << ": " << verdict.first()->describe();
    EXPECT_TRUE(verdict.bitwise()) << balance << ": " << verdict.largest().describe();
  }
  config.train.epochs = 2;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Comparison verdict = verify(config, context, verified_data(), 3);
    EXPECT_TRUE(!context.is_main() || verdict.num_steps() == 2) << "the run has no more";
  });
}

TEST(Verify, OneRankHasNothingToVerify) {
  comm::run_ranks_as_threads(1, [](comm::Context& context) {
    EXPECT_THROW(verify(verified_config(), context, verified_data(), 1), InvalidArgument);
  });
}

/// Deliberate faults of a user-defined module and loop, which are compared with the serial run.
struct Fault {
  bool leaves_out_a_bucket = false;
  double scale_of_rank_1 = 1;
  bool repeats_a_sample = false;
  double drift_of_rank_1 = 0;
  std::optional<double> factor_of_norm = {};  ///< of the norm that ranks clip by; both sides clip
};

/// Reduces all buckets except one, which keeps its local values on every rank.
class LeavesOutABucket : public parallel::CommHook {
 public:
  std::function<void()> start(comm::Group& group, parallel::GradientBucket& bucket,
                              parallel::ReduceScale scale) override {
    if (buckets_seen_++ == 0) return [] {};
    const auto pending = std::make_shared<comm::Pending>(
        group.all_reduce_async(bucket.flat, scale == parallel::ReduceScale::kMean ? comm::ReduceOp::kAverage
                                                                                  : comm::ReduceOp::kSum));
    return [pending] { pending->wait(); };
  }

 private:
  int buckets_seen_ = 0;
};

torch::nn::Sequential user_module() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::Linear(16, 1));
}

optim::NamedTensors parameters_of(const torch::nn::Sequential& module, bool gradients) {
  optim::NamedTensors result;
  for (const auto& item : module->named_parameters()) {
    result.emplace_back(item.key(), gradients ? item.value().grad().clone() : item.value().detach().clone());
  }
  return result;
}

Comparison one_step_with(const Fault& fault) {
  Comparison verdict({.loss = 1e-6, .gradient = 1e-5, .weight = 1e-4, .reason = "order of additions"});
  torch::manual_seed(7);
  const at::Tensor inputs = at::rand({8, 8}), targets = at::rand({8, 1});
  auto serial = user_module(), replica_0 = user_module(), replica_1 = user_module();
  const auto clip = [&](const torch::nn::Sequential& module, double factor) {
    if (!fault.factor_of_norm) return;
    optim::NamedTensors parameters;
    for (const auto& item : module->named_parameters()) parameters.emplace_back(item.key(), item.value());
    constexpr double kLargest = 0.01;
    EXPECT_GT(optim::clip_grad_norm(parameters, kLargest / factor), kLargest);
  };
  at::mse_loss(serial->forward(inputs), targets).backward();
  clip(serial, 1);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    auto& module = context.rank() == 0 ? replica_0 : replica_1;
    parallel::DistributedDataParallel ddp(
        context, module.ptr(),
        {.bucket_mib = 5e-5,
         .first_bucket_mib = 5e-5,
         .hook = fault.leaves_out_a_bucket ? std::make_shared<LeavesOutABucket>()
                                           : std::shared_ptr<parallel::CommHook>()});
    if (context.rank() == 1 && fault.drift_of_rank_1 != 0) {
      const at::NoGradGuard no_grad;
      module->parameters().back().add_(fault.drift_of_rank_1);
    }
    const std::int64_t begin = context.rank() == 1 && fault.repeats_a_sample ? 3 : 4 * context.rank();
    const at::Tensor loss =
        at::mse_loss(module->forward(inputs.narrow(0, begin, 4)), targets.narrow(0, begin, 4));
    (context.rank() == 1 ? loss * fault.scale_of_rank_1 : loss).backward();
    clip(module, fault.factor_of_norm.value_or(1));
  });
  verdict.gradients(1, parameters_of(replica_0, true), parameters_of(serial, true));
  const auto first = parameters_of(replica_0, false), second = parameters_of(replica_1, false);
  bool same = true;
  for (std::size_t i = 0; i < first.size(); ++i) same = same && first[i].second.equal(second[i].second);
  if (!same) verdict.replica_differs(1, 1, 0);
  return verdict;
}

TEST(Mutation, NoneIsFoundWhereThereIsNone) {
  EXPECT_TRUE(one_step_with({}).equal());
  EXPECT_TRUE(one_step_with({.factor_of_norm = 1}).equal());
}

TEST(Mutation, OmittedBucketIsNamedByParameter) {
  const Comparison verdict = one_step_with({.leaves_out_a_bucket = true});
  ASSERT_FALSE(verdict.equal());
  // Buckets are filled from the last parameter on, so the first contains the last layer's gradients.
  EXPECT_THAT(verdict.first()->describe(), HasSubstr("gradient of 1."));
}

TEST(Mutation, AWrongScaleIsFound) { EXPECT_FALSE(one_step_with({.scale_of_rank_1 = 1.001}).equal()); }

// As with a norm that counts a shared parameter twice, or only some of the parameters.
TEST(Mutation, WrongNormIsNamedByScaledParameter) {
  for (const double factor : {1.001, 0.999}) {
    const Comparison verdict = one_step_with({.factor_of_norm = factor});
    ASSERT_FALSE(verdict.equal());
    EXPECT_THAT(verdict.first()->describe(), HasSubstr("gradient of 0.weight"));
  }
}

// Each rank divides by its own scale, as if one of two ranks had missed that the scale was halved.
TEST(Mutation, AWrongLossScaleIsFound) {
  EXPECT_FALSE(one_step_with({.scale_of_rank_1 = 2}).equal());
  EXPECT_FALSE(one_step_with({.scale_of_rank_1 = 0.5}).equal());
}

TEST(Mutation, ASampleCountedTwiceIsFound) {
  EXPECT_FALSE(one_step_with({.repeats_a_sample = true}).equal());
}

TEST(Mutation, UnbroadcastParameterNamesRank) {
  const Comparison verdict = one_step_with({.drift_of_rank_1 = 1e-7});
  ASSERT_FALSE(verdict.equal());
  EXPECT_EQ(verdict.first()->what, "replica");
}

/// The last stage adds no gradient to the weight that it shares with the first.
struct LosesATiedGradient : test::Tied {
  std::vector<model::Layer> layers() override {
    auto all = Tied::layers();
    all.back().forward = [this](const Fields& x) -> Fields {
      return x.at(0).matmul((tokens->weight.detach() + 0 * tokens->weight).t());
    };
    return all;
  }
};

TEST(Mutation, OmittedTiedReductionIsNamedByParameter) {
  RunConfig config;
  config.train.global_batch = 24;
  config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0.9};
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 2;
  for (const bool loses : {false, true}) {
    std::atomic<int> num_made = 0;
    const auto make_model = [&]() -> std::shared_ptr<model::Model> {
      // The models of the two ranks are created first, then that of one rank.
      if (num_made++ < 2 && loses) return std::make_shared<LosesATiedGradient>();
      return std::make_shared<test::Tied>();
    };
    std::optional<Comparison> verdict;
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      const Comparison mine = verify(config, context, test::sequences(), 2, {.make_model = make_model});
      if (context.is_main()) verdict = mine;
    });
    ASSERT_EQ(num_made, 3);
    ASSERT_EQ(verdict->equal(), !loses);
    if (!loses) continue;
    EXPECT_THAT(verdict->first()->describe(), HasSubstr("gradient of tokens.weight"));
  }
}

}  // namespace
}  // namespace trireme::train
