// parallel.check_replicas_every: in every mode, parameters that ranks hold in common are compared. A
// divergence ends the run on all ranks. Parameters that may differ are ignored.
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>

#include "tests/unit/train/small_runs.h"
#include "tests/unit/train/token_sequences.h"
#include "trireme/base/error.h"
#include "trireme/model/initialise.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct ComparedMode {
  FormMesh mesh;
  /// Part of the name of a tensor that ranks hold in common. Null: no two ranks do, except in shared memory.
  const char* alike = "ln_f";
  const char* compression = "none";
  bool exact = false;
  std::int64_t shard_ranks = 0;
};
std::ostream& operator<<(std::ostream& out, const ComparedMode& mode) { return out << mode.mesh.name; }

// Ranks of backend "threads" share one copy of tied weights in memory. Those of gloo do not.
const ComparedMode kComparedModes[] = {
    {{"Replicas", 3, {}}},
    {{"Accumulation", 2, {}, 2}},
    {{"Bf16", 2, {}, 1, "bf16"}},
    {{"Fp16", 2, {}, 1, "fp16"}},
    {{"FindUnused", 2, {.unused_parameters = "find"}}},
    {.mesh = {"Exact", 2, {}, 2}, .exact = true},
    {.mesh = {"ByNeed", 2, {.priority = "forward"}}},
    {.mesh = {"Int8", 2, {}}, .compression = "int8"},
    {.mesh = {"PowerSgd", 2, {}}, .compression = "power-sgd"},
    {.mesh = {"TopK", 3, {}}, .compression = "top-k"},
    {{"Pipeline", 2, {.pipeline = 2, .microbatches = 2}}, "wte"},
    {{"PipelinesSideBySide", 4, {.pipeline = 2, .microbatches = 2}}},
    {{"Chunks", 4, {.pipeline = 2, .schedule = "interleaved-1f1b", .chunks = 2, .microbatches = 4}}},
    {{"DualPipe", 2, {.pipeline = 2, .schedule = "dualpipe", .microbatches = 4}}},
    {{"Tensor", 2, {.tensor = 2}}},
    {{"TensorAndSequence", 2, {.tensor = 2, .sequence = true}}},
    {{"TensorReplicas", 4, {.tensor = 2}}, "c_attn"},
    {{"Context", 2, {.context = 2}}},
    {{"ContextReplicas", 4, {.context = 2}}},
    {{"Zero1", 2, {.zero = 1}, 1, "fp32", "gloo"}},
    {{"Zero2", 3, {.zero = 2}, 2, "fp32", "gloo"}},
    {{"Zero1Bf16", 2, {.zero = 1}, 1, "bf16", "gloo"}},
    {{"Zero1InOneMemory", 2, {.zero = 1}}, nullptr},
    {{"Zero2Encoded", 2, {.zero = 2, .weight_compression = "int8"}, 1, "fp32", "gloo"}},
    {{"Zero3", 2, {.zero = 3}, 1, "fp32", "gloo"}, "wte"},
    {.mesh = {"Zero3Groups", 4, {.zero = 3}, 1, "fp32", "gloo"}, .alike = "wpe", .shard_ranks = 2},
    {{"PipelineZero2", 4, {.pipeline = 2, .microbatches = 2, .zero = 2}, 1, "fp32", "gloo"}},
    {{"Sites", 2, {.local_steps = 2}}, nullptr},
    {{"SitesOfTwo", 4, {.local_steps = 2, .local_ranks = 2}}},
    {{"Streaming", 4, {.local_steps = 3, .local_ranks = 2, .local_fragments = 3, .local_delay = 1}}},
};

class ReplicaComparison : public testing::TestWithParam<ComparedMode> {
 protected:
  static RunConfig config() {
    const ComparedMode& mode = GetParam();
    RunConfig config = config_of_form(mode.mesh);
    config.train.clip_norm = mode.mesh.parallel.priority == "none" ? 0.1 : 0;
    config.scaler.initial = 1024;
    config.run.exact = mode.exact;
    config.parallel.compression = mode.compression;
    config.parallel.shard_ranks = mode.shard_ranks;
    config.parallel.check_replicas_every = 1;
    config.train.epochs = 2;
    return config;
  }
  static void on_ranks(const std::function<void(comm::Context&)>& work) {
    comm::run_ranks_as_threads(GetParam().mesh.ranks, work,
                               {.backend = GetParam().mesh.backend, .timeout_s = 60});
  }
  /// Changes a value of the common tensor on the last rank after its forward and backward.
  static void change(Trainer& trainer) {
    const at::NoGradGuard no_grad;
    const bool in_pieces = GetParam().mesh.parallel.zero == 3;
    for (const auto& [name, tensor] : in_pieces ? trainer.parameters() : trainer.pipeline().weights()) {
      if (name.find(GetParam().alike) == std::string::npos) continue;
      tensor.view({-1})[0].add_(0.125);
      return;
    }
    FAIL() << "the last rank has no " << GetParam().alike;
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, ReplicaComparison, testing::ValuesIn(kComparedModes),
                         [](const auto& row) { return std::string(row.param.mesh.name); });

TEST_P(ReplicaComparison, LetsReplicasTrainThatStayTheSame) {
  const data::DataSource data = token_sequences();
  on_ranks([&](comm::Context& context) {
    Trainer trainer(config(), context, data);
    while (!trainer.finished()) trainer.step();
    EXPECT_EQ(trainer.steps_done(), 6);
  });
}

class DriftingReplicas : public ReplicaComparison {};
std::vector<ComparedMode> modes_with_replicas() {
  std::vector<ComparedMode> modes;
  std::ranges::copy_if(kComparedModes, std::back_inserter(modes),
                       [](const ComparedMode& mode) { return mode.alike != nullptr; });
  return modes;
}
INSTANTIATE_TEST_SUITE_P(Modes, DriftingReplicas, testing::ValuesIn(modes_with_replicas()),
                         [](const auto& row) { return std::string(row.param.mesh.name); });

TEST_P(DriftingReplicas, EndRunWithNameOfDifference) {
  const data::DataSource data = token_sequences();
  std::atomic<int> num_told = 0;
  on_ranks([&](comm::Context& context) {
    Trainer trainer(config(), context, data);
    trainer.before_changes([&, updates = 0]() mutable {
      if (++updates == 3 && context.rank() == context.world_size() - 1) change(trainer);
    });
    // With local SGD, only the site that differs ends by itself.
    const int site = static_cast<int>(config().parallel.local_ranks);
    const bool is_told = site == 1 || context.rank() >= context.world_size() - site;
    const auto run = [&] {
      while (!trainer.finished()) trainer.step();
    };
    if (!is_told) {
      EXPECT_THROW(run(), CommError);
      return;
    }
    EXPECT_THAT(run, ThrowsMessage<CommError>(AllOf(
                         HasSubstr("step 3: the replicas have drifted apart"), HasSubstr(GetParam().alike),
                         HasSubstr("2 different values"), HasSubstr("parallel.check_replicas_every = 0"))));
    ++num_told;
  });
  EXPECT_GT(num_told, 1);
}

/// Sums of embeddings. To bound their norms, forward writes the rows that it reads.
struct BoundedWords : model::Model {
  BoundedWords()
      : words(register_module(
            "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(kVocabulary, 8).max_norm(0.1)))),
        head(register_module("head", torch::nn::Linear(8, kVocabulary))) {
    model::initialise(*this, 7);
  }
  at::Tensor forward(const at::Tensor& x) override { return head(words(x)); }
  torch::nn::Embedding words;
  torch::nn::Linear head;
};

TEST(ReplicaChecks, FindNormBoundedEmbeddingByLastStep) {
  const data::DataSource data = token_sequences();
  RunConfig config = small_gpt_config();
  ASSERT_EQ(config.parallel.check_replicas_every, 100);
  config.train.epochs = 2;
  config.train.max_steps = 4;
  const auto run_on = [&](int ranks) {
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      Trainer trainer(config, context, data, std::make_shared<BoundedWords>());
      const auto run = [&] {
        while (!trainer.finished()) trainer.step();
      };
      if (ranks == 1) return run();
      EXPECT_THAT(run, ThrowsMessage<CommError>(AllOf(HasSubstr("step 4: "), HasSubstr("'words.weight'"))));
    });
  };
  run_on(1);
  run_on(3);
  config.parallel.check_replicas_every = 0;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Trainer trainer(config, context, data, std::make_shared<BoundedWords>());
    while (!trainer.finished()) trainer.step();
  });
}

class ReplicaCheckedRuns : public SmallRuns {};

TEST_F(ReplicaCheckedRuns, ContinueWithSameBitsOnAnyRanks) {
  RunConfig whole = config("whole"), part = config("part");
  for (RunConfig* each : {&whole, &part}) each->parallel.check_replicas_every = 1;
  const std::string expected = run(2, whole).weights_xxh3;
  part.train.max_steps = 6;
  run(2, part);
  part.train.max_steps = 12;
  EXPECT_EQ(run(2, part, RunStart::kResume).weights_xxh3, expected);
  part.train.max_steps = 14;
  part.parallel.zero = 2;
  EXPECT_EQ(run(3, part, RunStart::kResume).steps, 14);
}

}  // namespace
}  // namespace trireme::train
