// parallel.tensor = N trains the model of one rank on any mesh: initial values, steps, norm, evaluation and
// saved state. verify detects a missing reduction between the ranks and names the parameter.

#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <mutex>

#include "tests/support/temporary_folder.h"
#include "tests/unit/parallel/whole_tensors.h"
#include "tests/unit/train/token_sequences.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/model/deferred.h"
#include "trireme/model/gpt.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/tensor/linear.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(TensorParallelModel, BeginsWithBitsOfWholeModel) {
  const auto make = [] {
    return std::make_shared<model::Gpt>(
        model::GptOptions{.layers = 2, .heads = 4, .width = 12, .block = kTokens, .vocabulary = kVocabulary});
  };
  const auto whole = make(), recipe = model::deferred(make);
  whole->initialise(5);
  for (const auto& from : {whole, recipe}) {
    test::WholeTensors values;
    run_ranks_as_threads(3, [&](Context& context) {
      const parallel::TensorParallelModel form =
          parallel::make_tensor_parallel(*from, {.group = context.world()});
      if (model::is_deferred(*form.model)) {
        EXPECT_EQ(from, recipe);
        model::materialise(model::whole(*form.model));
        form.model->initialise(5);
      }
      values.add_values(*form.model);
    });
    for (const auto& parameter : whole->named_parameters())
      EXPECT_TRUE(at::equal(values.get(parameter.key(), 3), parameter.value())) << parameter.key();
  }
}

// Replicated parameters count once. Evaluation uses whole logits, once for all ranks.
TEST(TensorTraining, NormLossAndEvaluationMatchOneRank) {
  const data::DataSource data = token_sequences();
  struct Seen {
    StepReport report;
    Evaluation evaluation;
  };
  const auto seen_on = [&](const FormMesh& mesh) {
    std::vector<Seen> all(static_cast<std::size_t>(mesh.ranks));
    RunConfig config = config_of_form(mesh);
    config.objective.metrics = {"accuracy", "top_k"};
    config.train.ema_decay = 0.5;
    run_ranks_as_threads(
        mesh.ranks,
        [&](Context& context) {
          Trainer trainer(config, context, data);
          for (int step = 0; step < 3; ++step) trainer.step();
          all[static_cast<std::size_t>(context.rank())] = {*trainer.last_report(), trainer.evaluate()};
        },
        {.backend = mesh.backend});
    return all;
  };
  const Seen one = seen_on({"one", 1, {}}).front();
  for (const FormMesh& mesh :
       {FormMesh{"tp", 3, {.tensor = 3}},
        FormMesh{"dp x tp", 4, {.tensor = 2, .sequence = true}, 1, "fp32", "gloo"},
        FormMesh{"pp x tp", 4, {.pipeline = 2, .tensor = 2, .microbatches = 2}},
        FormMesh{"cp", 3, {.context = 3}}, FormMesh{"dp x cp", 4, {.context = 2}, 1, "fp32", "gloo"},
        FormMesh{"pp x cp x tp", 8, {.pipeline = 2, .tensor = 2, .context = 2, .microbatches = 2}}}) {
    SCOPED_TRACE(mesh.name);
    for (const auto& [report, evaluation] : seen_on(mesh)) {
      EXPECT_NEAR(report.loss, one.report.loss, 1e-5);
      EXPECT_NEAR(report.grad_norm.value(), one.report.grad_norm.value(), 1e-5);
      EXPECT_EQ(evaluation.samples, 13);
      EXPECT_NEAR(evaluation.loss, one.evaluation.loss, 1e-5);
      EXPECT_EQ(evaluation["accuracy"], one.evaluation["accuracy"]);
      EXPECT_EQ(evaluation["top_k"], one.evaluation["top_k"]);
    }
  }
}

// A loss that is not a sum over single targets is that of whole sequences, which each of their ranks
// computes. Counts are over all pieces, some of which have no counted target.
TEST(ContextTraining, AnyObjectiveIsThatOfOneRank) {
  const data::DataSource data = token_sequences();
  RunConfig weighted = config_of_form({"", 4, {.context = 2}}), ignoring = weighted;
  for (int i = 0; i < kVocabulary; ++i) weighted.objective.class_weights.push_back(0.5 + i % 3);
  ignoring.objective.ignored_classes = {0, 1, 2, 3, 5, 7};
  ignoring.objective.label_smoothing = 0.1;
  for (const RunConfig& config : {weighted, ignoring}) {
    run_ranks_as_threads(4, [&](Context& context) {
      const Comparison comparison = verify(config, context, data, 2);
      if (!context.is_main()) return;
      EXPECT_TRUE(comparison.equal()) << (comparison.first() ? comparison.first()->describe() : "unverified");
    });
  }
}

// ---- saved state -----------------------------------------------------------------------------------

std::vector<bool> all_see(const Context& context) {
  return std::vector<bool>(static_cast<std::size_t>(context.world_size()), true);
}

void save(Context& context, Trainer& trainer, const std::filesystem::path& folder) {
  const Progress progress;
  checkpoint::SaveShares shares(context.world(), state_to_save(trainer, progress), all_see(context));
  const auto part = snapshot_of(trainer, shares, progress, trainer.plan().config());
  if (part) checkpoint::write_part(folder, *part);
  context.world().barrier();
  if (context.is_main()) checkpoint::finish_checkpoint(folder, *part, 1, [] { return false; });
  context.world().barrier();
}

void load(Context& context, Trainer& trainer, const std::filesystem::path& folder) {
  const auto found =
      checkpoint::find_latest_checkpoint(context.world(), folder, all_see(context), Log("test"));
  ASSERT_TRUE(found.has_value());
  restore_state(trainer.state(), context, found->folder, all_see(context));
  trainer.seek(found->head.step);
}

TEST(TensorTraining, CheckpointKeepsBitsOverMeshes) {
  const test::TemporaryFolder folder;
  const data::DataSource data = token_sequences();
  std::map<std::string, at::Tensor> before, after;
  const auto on = [&](const FormMesh& mesh, const auto& work) {
    SCOPED_TRACE(mesh.name);
    RunConfig config = config_of_form(mesh);
    config.optimizer = {.name = "adamw", .lr = 0.01, .weight_decay = 0};
    config.train.ema_decay = 0.5;
    run_ranks_as_threads(mesh.ranks, [&](Context& context) {
      Trainer trainer(config, context, data);
      work(context, trainer);
    });
  };
  const auto state = [](Trainer& trainer) {
    std::map<std::string, at::Tensor> copies;
    for (const checkpoint::Shard& shard : shards_of(trainer.state()))
      copies[shard.name] = shard.tensor.clone();
    return copies;
  };
  const FormMesh one{"one", 1, {}};
  on(one, [&](Context& context, Trainer& trainer) {
    trainer.step();
    trainer.step();
    before = state(trainer);
    save(context, trainer, folder.path());
  });
  for (const FormMesh& mesh :
       {FormMesh{"tp 2", 2, {.tensor = 2}}, FormMesh{"dp 2 x tp 2, zero 2", 4, {.tensor = 2, .zero = 2}},
        FormMesh{"pp 2 x tp 2", 4, {.pipeline = 2, .tensor = 2, .microbatches = 2}},
        FormMesh{"cp 2 x tp 2, zero 2", 4, {.tensor = 2, .context = 2, .zero = 2}},
        FormMesh{"dp 2 x pp 2 x tp 2, zero 1", 8, {.pipeline = 2, .tensor = 2, .microbatches = 2, .zero = 1}},
        FormMesh{"tp 3", 3, {.tensor = 3, .sequence = true}}, FormMesh{"pp 2", 2, {.pipeline = 2}}}) {
    on(mesh, [&](Context& context, Trainer& trainer) {
      load(context, trainer, folder.path());
      save(context, trainer, folder.path());
    });
  }
  on(one, [&](Context& context, Trainer& trainer) {
    load(context, trainer, folder.path());
    after = state(trainer);
  });
  ASSERT_EQ(after.size(), before.size());
  EXPECT_GT(before.size(), 60U) << "parameters, two moments and an average of each";
  for (const auto& [name, tensor] : before) EXPECT_TRUE(at::equal(after.at(name), tensor)) << name;
}

// ---- a user-defined model ----------------------------------------------------------------------------

/// The fault of the model's form.
enum class Fault { kNone, kForgotReduction, kSummedTwice, kOnOneRank, kThrows };

struct InParts : model::Model {
  InParts(const comm::Group& of, Fault what) : group(of), fault(what) {
    up = register_module("up", std::make_shared<parallel::ColumnParallelLinear>(
                                   of, parallel::ParallelLinearOptions{.in = kTokens, .out = 6}));
    down = register_module("down", std::make_shared<parallel::RowParallelLinear>(
                                       of, parallel::ParallelLinearOptions{.in = 6, .out = 8}));
    scale = register_parameter("weight", at::ones({1, 8}));
    last = register_module("last", torch::nn::Linear(8, kTokens * kVocabulary));
  }
  at::Tensor forward(const at::Tensor& tokens) override {
    const at::Tensor hidden = down->forward(at::gelu(up->forward(tokens.to(at::kFloat))));
    at::Tensor values = hidden * scale;
    if (fault == Fault::kForgotReduction) {  // each rank has the gradient of its own part only
      const auto range = parallel::part_of_rank(8, group.rank(), group.size());
      values = parallel::join_parts(
          parallel::own_part(hidden, 1, group) * scale.narrow(1, range.begin, range.size), 1, 8, group);
    }
    if (fault == Fault::kSummedTwice) values = hidden * (scale + parallel::copy_to_ranks(scale, group)) / 2;
    if (fault == Fault::kOnOneRank && group.rank() == 1) values = hidden * (scale + scale.detach()) / 2;
    if (fault == Fault::kThrows && is_training() && group.rank() == 1) throw DataError("in mid-layer");
    return last->forward(values).unflatten(1, {kTokens, kVocabulary});
  }
  const comm::Group group;
  const Fault fault;
  std::shared_ptr<parallel::ColumnParallelLinear> up;
  std::shared_ptr<parallel::RowParallelLinear> down;
  at::Tensor scale;
  torch::nn::Linear last{nullptr};
};

struct Whole : model::Model, parallel::TensorParallelizable {
  explicit Whole(Fault what = Fault::kNone) : fault(what) {
    up = register_module("up", torch::nn::Linear(kTokens, 6));
    down = register_module("down", torch::nn::Linear(6, 8));
    scale = register_parameter("weight", at::ones({1, 8}));
    last = register_module("last", torch::nn::Linear(8, kTokens * kVocabulary));
    model::initialise(*this, 3);
  }
  at::Tensor forward(const at::Tensor& tokens) override {
    const at::Tensor hidden = down->forward(at::gelu(up->forward(tokens.to(at::kFloat))));
    return last->forward(hidden * scale).unflatten(1, {kTokens, kVocabulary});
  }
  parallel::TensorLimits tensor_limits() const override { return {.max_ranks = 3, .of_what = "3 things"}; }
  parallel::TensorParallelModel tensor_parallel(
      const parallel::TensorParallelOptions& options) const override {
    return {.model = std::make_shared<InParts>(options.group, fault)};
  }
  const Fault fault;
  torch::nn::Linear up{nullptr}, down{nullptr}, last{nullptr};
  at::Tensor scale;
};

RunConfig own_config(int tensor) {
  RunConfig config = small_gpt_config();
  config.parallel.tensor = tensor;
  return config;
}

std::string first_difference(int ranks, Fault fault) {
  std::string first = "equal";
  const data::DataSource data = token_sequences();
  run_ranks_as_threads(ranks, [&](Context& context) {
    const Comparison comparison =
        verify(own_config(2), context, data, 1,
               {.make_model = [fault] { return std::make_shared<Whole>(fault); }, .objective = nullptr});
    if (context.is_main() && !comparison.equal()) first = comparison.first().value().describe();
  });
  return first;
}

TEST(TensorTraining, CustomModelIsCutByItsForm) {
  EXPECT_EQ(first_difference(2, Fault::kNone), "equal");
  EXPECT_EQ(first_difference(4, Fault::kNone), "equal");
}

TEST(TensorTraining, WrongReductionIsFoundByParameter) {
  EXPECT_EQ(first_difference(2, Fault::kForgotReduction),
            "step 1: the weights of rank 1 are not those of rank 0: first weight");
  EXPECT_THAT(first_difference(2, Fault::kSummedTwice), HasSubstr("step 1: gradient of weight differs by"));
}

// The copy of the first rank is right. Replicated parameters are compared on all ranks.
TEST(TensorTraining, DriftingReplicatedParameterIsFoundByName) {
  EXPECT_EQ(first_difference(2, Fault::kOnOneRank),
            "step 1: the weights of rank 1 are not those of rank 0: first weight");
}

TEST(TensorTraining, RankFailingMidLayerIsNamed) {
  const data::DataSource data = token_sequences();
  run_ranks_as_threads(2, [&](Context& context) {
    Trainer trainer(own_config(2), context, data, std::make_shared<Whole>(Fault::kThrows));
    if (context.rank() == 1) {
      EXPECT_THAT([&] { trainer.step(); }, ThrowsMessage<DataError>(HasSubstr("in mid-layer")));
    } else {
      EXPECT_THAT([&] { trainer.step(); },
                  ThrowsMessage<CommError>(HasSubstr(
                      "rank 1, group 'world': a pass that all ranks compute together ended early")));
    }
  });
}

// ---- rejections --------------------------------------------------------------------------------------

std::string refusal(int ranks, const std::function<void(RunConfig&)>& change) {
  RunConfig config = small_gpt_config();
  config.parallel.tensor = 2;
  change(config);
  try {
    const data::DataSource data = config.model.name == "gpt" ? token_sequences() : open_data(config.data);
    run_ranks_as_threads(ranks, [&](Context& context) { const Trainer trainer(config, context, data); });
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing";
}

TEST(TensorRejections, NameTheReasonAndTheNearestPlan) {
  EXPECT_THAT(refusal(6, [](RunConfig& c) { c.parallel.tensor = 4; }),
              AllOf(HasSubstr("parallel.tensor = 4 does not fit 6 ranks"), HasSubstr("cut by 1, 2, 3 or 6"),
                    HasSubstr("works on 6 ranks: parallel.tensor = 3")));
  EXPECT_THAT(refusal(8, [](RunConfig& c) { c.parallel.tensor = 8; }),
              AllOf(HasSubstr("has 4 heads"), HasSubstr("works on 8 ranks: parallel.tensor = 4")));
  EXPECT_THAT(refusal(4,
                      [](RunConfig& c) {
                        c.optimizer.name = "lamb";
                        c.parallel.compression = "one-bit";
                        c.parallel.compression_warmup_steps = 2;
                        c.train.clip_norm = 0;
                      }),
              AllOf(HasSubstr("goes by whole parameters"), HasSubstr("another compression")));
  EXPECT_THAT(refusal(4,
                      [](RunConfig& c) {
                        c.optimizer.name = "muon";
                        c.parallel.zero = 1;
                      }),
              AllOf(HasSubstr("shard them alike"), HasSubstr("works on 4 ranks: parallel.zero = 0")));
  EXPECT_THAT(refusal(4,
                      [](RunConfig& c) {
                        c.parallel.pipeline = 2;
                        c.parallel.schedule = "pipedream";
                        c.train.clip_norm = 0;
                      }),
              AllOf(HasSubstr("computes with older weights"), HasSubstr("parallel.schedule = \"1f1b\"")));
  EXPECT_THAT(refusal(2,
                      [](RunConfig& c) {
                        c.data.name = "synthetic";
                        c.model.name = "cnn";
                      }),
              AllOf(HasSubstr("no tensor-parallel form"), HasSubstr("parallel.tensor = 1")));
  EXPECT_THAT(refusal(2,
                      [](RunConfig& c) {
                        c.data.name = "synthetic";
                        c.model.name = "mlp";
                        c.parallel.sequence = true;
                      }),
              AllOf(HasSubstr("no sequences that could be cut"), HasSubstr("parallel.sequence = false")));
}

TEST(ContextRejections, NameTheReasonAndTheNearestPlan) {
  const auto of_context = [](int ranks, std::int64_t context, const std::function<void(RunConfig&)>& change) {
    return refusal(ranks, [&](RunConfig& config) {
      config.parallel.tensor = 1;
      config.parallel.context = context;
      change(config);
    });
  };
  const auto nothing_else = [](RunConfig&) {};
  EXPECT_THAT(of_context(6, 4, nothing_else), AllOf(HasSubstr("parallel.context = 4 does not fit 6 ranks"),
                                                    HasSubstr("works on 6 ranks: parallel.context = 3")));
  EXPECT_THAT(
      of_context(4, 4, nothing_else),
      AllOf(HasSubstr("has sequences of 7 tokens, and each rank needs an early and a late one; use at "
                      "most 3"),
            HasSubstr("works on 4 ranks: parallel.context = 2")));
  EXPECT_THAT(of_context(2, 2,
                         [](RunConfig& c) {
                           c.data.name = "synthetic";
                           c.model.name = "mlp";
                         }),
              AllOf(HasSubstr("no sequences that could be cut"), HasSubstr("parallel.context = 1")));
  EXPECT_THAT(of_context(2, 2, [](RunConfig& c) { c.objective.name = "model"; }),
              AllOf(HasSubstr("counted 2 times"), HasSubstr("parallel.context = 1")));
  EXPECT_THAT(of_context(4, 2,
                         [](RunConfig& c) {
                           c.parallel.pipeline = 2;
                           c.parallel.schedule = "pipedream";
                           c.train.clip_norm = 0;
                         }),
              AllOf(HasSubstr("cannot share gradients"), HasSubstr("parallel.schedule = \"1f1b\"")));
}

}  // namespace
}  // namespace trireme::train
