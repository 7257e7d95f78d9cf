// A transformer made of the pieces of tensor parallelism is the shipped one: forward, loss, every gradient.
// All in f64. The ranks add up the same products in another order: a sum of n numbers is off by n * 2^-53 of
// the sum of their sizes at most, one pass goes through some 40 sums of 48 numbers at most, and 40 * 48 *
// 2^-53 is 2e-13; kBound allows five times that. A wrong term is off by more than 1e-3.
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/parallel/small_models.h"
#include "tests/unit/parallel/whole_tensors.h"
#include "trireme/base/text.h"
#include "trireme/comm/context.h"
#include "trireme/comm/mesh.h"
#include "trireme/model/gpt.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/tensor/attention.h"
#include "trireme/parallel/tensor/cross_entropy.h"
#include "trireme/parallel/tensor/embedding.h"
#include "trireme/parallel/tensor/joint_pass.h"
#include "trireme/parallel/tensor/linear.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using comm::Context;
using comm::Group;
using comm::run_ranks_as_threads;
using test::difference;
using test::numbers;
using testing::ElementsAre;
using MaybeSequence = std::optional<Sequence>;

constexpr double kBound = test::kRoundingBound;
constexpr std::int64_t kBatch = 4, kTime = 7, kVocabulary = 11, kWidth = 12, kHeads = 4, kLayers = 2;
constexpr std::uint64_t kSeed = 5;

/// Layer norm without bias, of whole sequences or of parts.
class Norm : public nn::Module {
 public:
  Norm(Group group, std::int64_t width)
      : group_(std::move(group)), weight_(register_parameter("weight", at::ones({width}))) {}
  at::Tensor forward(const at::Tensor& values, const MaybeSequence& sequence) {
    const at::Tensor weight = sequence ? copy_to_ranks(weight_, group_) : weight_;
    return at::layer_norm(values, weight_.sizes(), weight, {}, 1e-5);
  }

 private:
  const Group group_;
  at::Tensor weight_;
};

template <class Layer>
at::Tensor run(Layer& layer, const at::Tensor& values, const MaybeSequence& sequence) {
  return sequence ? layer.forward(values, *sequence) : layer.forward(values);
}

class FeedForward : public nn::Module {
 public:
  FeedForward(const Group& group, std::int64_t width, bool bias)
      : c_fc_(register_module(
            "c_fc", std::make_shared<ColumnParallelLinear>(
                        group, ParallelLinearOptions{.in = width, .out = 4 * width, .bias = bias}))),
        c_proj_(register_module(
            "c_proj", std::make_shared<RowParallelLinear>(
                          group, ParallelLinearOptions{.in = 4 * width, .out = width, .bias = bias}))) {}
  at::Tensor forward(const at::Tensor& values, const MaybeSequence& sequence) {
    return run(*c_proj_, at::gelu(run(*c_fc_, values, sequence)), sequence);
  }

 private:
  std::shared_ptr<ColumnParallelLinear> c_fc_;
  std::shared_ptr<RowParallelLinear> c_proj_;
};

class Block : public nn::Module {
 public:
  explicit Block(const Group& group, bool bias = false)
      : ln_1_(register_module("ln_1", std::make_shared<Norm>(group, kWidth))),
        attn_(register_module(
            "attn", std::make_shared<ParallelAttention>(
                        group, ParallelAttentionOptions{.width = kWidth, .heads = kHeads, .bias = bias}))),
        ln_2_(register_module("ln_2", std::make_shared<Norm>(group, kWidth))),
        mlp_(register_module("mlp", std::make_shared<FeedForward>(group, kWidth, bias))) {}
  at::Tensor forward(const at::Tensor& values, const MaybeSequence& sequence) {
    const at::Tensor attended = values + run(*attn_, ln_1_->forward(values, sequence), sequence);
    return attended + mlp_->forward(ln_2_->forward(attended, sequence), sequence);
  }

 private:
  std::shared_ptr<Norm> ln_1_;
  std::shared_ptr<ParallelAttention> attn_;
  std::shared_ptr<Norm> ln_2_;
  std::shared_ptr<FeedForward> mlp_;
};

/// The names and values of model::Gpt.
class ParallelGpt : public nn::Module {
 public:
  explicit ParallelGpt(const Group& group)
      : group_(group),
        tokens_(std::make_shared<VocabularyParallelEmbedding>(group, kVocabulary, kWidth)),
        positions_(kTime, kWidth),
        last_norm_(std::make_shared<Norm>(group, kWidth)) {
    const auto transformer = register_module("transformer", std::make_shared<nn::Module>());
    transformer->register_module("wte", tokens_);
    transformer->register_module("wpe", positions_);
    const auto blocks = transformer->register_module("h", std::make_shared<nn::Module>());
    for (std::int64_t i = 0; i < kLayers; ++i)
      blocks_.push_back(blocks->register_module(std::to_string(i), std::make_shared<Block>(group)));
    transformer->register_module("ln_f", last_norm_);
    to(at::kDouble);
    initialise();
  }

  /// Logits of this rank's part of the vocabulary.
  at::Tensor forward(const at::Tensor& input, const MaybeSequence& sequence) {
    at::Tensor values = embed(input, sequence);
    for (const auto& block : blocks_) values = block->forward(values, sequence);
    return logits(values, sequence);
  }

  std::vector<model::Layer> layers(const MaybeSequence& sequence) {
    std::vector<model::Layer> chain = {
        model::make_layer(*this, "embedding", {tokens_, positions_.ptr()},
                          [=, this](const at::Tensor& input) { return embed(input, sequence); })};
    for (const auto& block : blocks_)
      chain.push_back(model::make_layer(*this, "block", {block}, [=](const at::Tensor& values) {
        return block->forward(values, sequence);
      }));
    chain.push_back(
        model::make_layer(*this, "logits", {last_norm_, tokens_},
                          [=, this](const at::Tensor& values) { return logits(values, sequence); }));
    return chain;
  }

 private:
  at::Tensor embed(const at::Tensor& input, const MaybeSequence& sequence) {
    const at::Tensor places = at::arange(input.size(1), input.options());
    return run(*tokens_, input, sequence) + positions_of(places, sequence);
  }
  at::Tensor logits(const at::Tensor& values, const MaybeSequence& sequence) {
    const at::Tensor normed = last_norm_->forward(values, sequence);
    return sequence ? tokens_->logits(normed, *sequence) : tokens_->logits(normed);
  }
  at::Tensor positions_of(const at::Tensor& places, const MaybeSequence& sequence) {
    if (!sequence) return positions_->forward(places);
    return own_part(positions_->forward(places), 0, group_);
  }

  void initialise() {
    const double residual = 0.02 / std::sqrt(2.0 * kLayers);
    for (const auto& box : model::parameter_boxes(*this)) {
      if (box.global_sizes.size() == 1) continue;  // norms begin with ones
      model::fill_normal(box, box.name.ends_with("c_proj.weight") ? residual : 0.02, kSeed);
    }
  }

  const Group group_;
  std::shared_ptr<VocabularyParallelEmbedding> tokens_;
  nn::Embedding positions_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<Norm> last_norm_;
};

/// Tokens of which some are predicted, one is ignored, and the lowest and highest ones occur.
at::Tensor some_tokens(std::int64_t from) {
  return (at::arange(kBatch * kTime, at::kLong).mul(3).add(from).remainder(kVocabulary))
      .reshape({kBatch, kTime});
}

struct OneRank {
  OneRank()
      : model({.layers = kLayers,
               .heads = kHeads,
               .width = kWidth,
               .block = kTime,
               .vocabulary = kVocabulary}) {
    model.to(at::kDouble);
    model.initialise(kSeed);
    logits = model.forward(some_tokens(0));
    loss = at::cross_entropy_loss(logits.flatten(0, 1), some_tokens(1).flatten(), {}, at::Reduction::Sum, 4,
                                  0.1);
    loss.backward();
  }
  model::Gpt model;
  at::Tensor logits, loss;
};

struct TensorMesh {
  int ranks;
  bool cut_sequences;
};

class ParallelTransformer : public testing::TestWithParam<TensorMesh> {
 protected:
  MaybeSequence sequence() const {
    return GetParam().cut_sequences ? MaybeSequence(Sequence{.length = kTime}) : std::nullopt;
  }
  int ranks() const { return GetParam().ranks; }
};

TEST_P(ParallelTransformer, EqualsOneRankInForwardLossAndEveryGradient) {
  const OneRank expected;
  test::WholeTensors values, gradients;
  run_ranks_as_threads(ranks(), [&](Context& context) {
    const Group& group = context.world();
    ParallelGpt model(group);
    values.add_values(model);
    for (int pass = 0; pass < 2; ++pass) {
      model.zero_grad();
      const at::Tensor logits = model.forward(some_tokens(0), sequence());
      const at::Tensor loss = vocabulary_cross_entropy(
          logits, some_tokens(1), group,
          {.vocabulary = kVocabulary, .label_smoothing = 0.1, .ignored_classes = {4}});
      loss.backward();
      EXPECT_LE(difference(join_parts(logits, 2, kVocabulary, group), expected.logits), kBound);
      EXPECT_LE(difference(loss, expected.loss), kBound);
    }
    gradients.add_gradients(model);
  });
  for (const auto& parameter : expected.model.named_parameters()) {
    EXPECT_TRUE(at::equal(values.get(parameter.key(), ranks()), parameter.value())) << parameter.key();
    EXPECT_LE(difference(gradients.get(parameter.key(), ranks()), parameter.value().grad()), kBound)
        << parameter.key();
  }
}

TEST_P(ParallelTransformer, EvaluatesWithoutGradients) {
  const OneRank expected;
  run_ranks_as_threads(ranks(), [&](Context& context) {
    ParallelGpt model(context.world());
    const at::NoGradGuard no_grad;
    const at::Tensor logits = model.forward(some_tokens(0), sequence());
    EXPECT_FALSE(logits.requires_grad());
    EXPECT_LE(difference(join_parts(logits, 2, kVocabulary, context.world()), expected.logits), kBound);
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, ParallelTransformer,
                         testing::Values(TensorMesh{1, false}, TensorMesh{1, true}, TensorMesh{2, false},
                                         TensorMesh{2, true}, TensorMesh{3, false}, TensorMesh{3, true},
                                         TensorMesh{4, false}, TensorMesh{4, true}),
                         [](const auto& instance) {
                           return text(instance.param.ranks, "Ranks",
                                       instance.param.cut_sequences ? "SequencesCut" : "Replicated");
                         });

// Each pair of tensor-parallel ranks has one half of the batch; gradients are summed over the pairs.
TEST(TensorAndDataParallel, TwoByTwoRanksEqualOne) {
  for (const bool is_cut : {false, true}) {
    SCOPED_TRACE(is_cut ? "sequences cut" : "replicated");
    const OneRank expected;
    test::WholeTensors gradients;
    run_ranks_as_threads(4, [&](Context& context) {
      comm::Mesh mesh(context, {{"dp", 2}, {"tp", 2}});
      const Group& group = mesh.group("tp");
      const auto model = std::make_shared<ParallelGpt>(group);
      DistributedDataParallel ddp(mesh.group("dp"), model, {.scale = ReduceScale::kSum});
      const auto own = [&](const at::Tensor& batch) { return test::part(batch, 0, mesh.group("dp")); };
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        const JointPass pass(context.world());
        const at::Tensor logits = model->forward(
            own(some_tokens(0)), is_cut ? MaybeSequence(Sequence{.length = kTime}) : std::nullopt);
        vocabulary_cross_entropy(logits, own(some_tokens(1)), group,
                                 {.vocabulary = kVocabulary, .label_smoothing = 0.1, .ignored_classes = {4}})
            .backward();
      }
      if (mesh.coordinate("dp") == 1) gradients.add_gradients(*model);
    });
    for (const auto& parameter : expected.model.named_parameters())
      EXPECT_LE(difference(gradients.get(parameter.key(), 2), parameter.value().grad()), kBound)
          << parameter.key();
  }
}

struct HybridMesh {
  int data;
  std::string schedule;
  bool cut_sequences;
};

/// `data` pipelines of two stages, each cut over two ranks; the tokens' embedding is tied over both stages.
void expect_hybrid_equals_one_rank(const HybridMesh& of) {
  SCOPED_TRACE(text(of.data, " pipelines, ", of.schedule, of.cut_sequences ? ", sequences cut" : ""));
  const OneRank expected;
  test::WholeTensors gradients;
  run_ranks_as_threads(4 * of.data, [&](Context& context) {
    comm::Mesh mesh(context, {{"dp", of.data}, {"pp", 2}, {"tp", 2}});
    const Group &group = mesh.group("tp"), &data = mesh.group("dp");
    ParallelGpt model(group);
    Pipeline pipe(context, {.pipeline = mesh.group("pp"), .data = data},
                  model.layers(of.cut_sequences ? MaybeSequence(Sequence{.length = kTime}) : std::nullopt),
                  {.schedule = of.schedule, .num_microbatches = 2});
    const auto mean_loss = [&](const at::Tensor& logits, const at::Tensor& targets) {
      return vocabulary_cross_entropy(
                 logits, targets, group,
                 {.vocabulary = kVocabulary, .label_smoothing = 0.1, .ignored_classes = {4}}) /
             targets.size(0);
    };
    for (int step = 0; step < 2; ++step) {
      pipe.zero_grad();
      pipe.step(test::part(some_tokens(0), 0, data), test::part(some_tokens(1), 0, data), mean_loss);
    }
    const auto held = pipe.parameters();
    for (const auto& box : model::parameter_boxes(model)) {
      const auto is_it = [&](const auto& parameter) { return parameter.first == box.name; };
      const bool is_elsewhere = box.name == "transformer.wte.weight" && !pipe.has_first_stage();
      if (data.rank() == 0 && !is_elsewhere && std::ranges::any_of(held, is_it))
        gradients.add(box, box.parameter.grad());
    }
  });
  for (const auto& parameter : expected.model.named_parameters())
    EXPECT_LE(difference(gradients.get(parameter.key(), 2), parameter.value().grad() / kBatch), kBound)
        << parameter.key();
}

TEST(TensorParallelPipeline, TwoByTwoRanksEqualOne) {
  for (const std::string schedule : {"1f1b", "interleaved-1f1b", "zb-h1"})
    for (const bool is_cut : {false, true}) expect_hybrid_equals_one_rank({1, schedule, is_cut});
}

TEST(TensorParallelPipeline, TwoByTwoByTwoRanksEqualOne) {
  for (const bool is_cut : {false, true}) expect_hybrid_equals_one_rank({2, "1f1b", is_cut});
}

/// What a block exchanges in a forward and a backward pass over `batch` sequences of `time` tokens.
struct Exchanged {
  std::vector<std::string> forward, backward;
};
Exchanged exchanged(Context& context, const MaybeSequence& sequence, std::int64_t time, bool bias = false) {
  const Group& group = context.world();
  Block block(group, bias);
  at::Tensor input = numbers({kBatch, time, kWidth}, 1);
  if (sequence) input = own_part(input, 1, group);
  input.requires_grad_();
  Exchanged all;
  const test::OperationsSince forward(group);
  const at::Tensor output = block.forward(input, sequence);
  all.forward = forward.list();
  const test::OperationsSince backward(group);
  output.sum().backward();
  all.backward = backward.list();
  return all;
}

TEST(TensorCommunication, ALayerTakesTwoAllReducesForwardAndTwoBackward) {
  run_ranks_as_threads(2, [](Context& context) {
    const Exchanged all = exchanged(context, std::nullopt, 6);
    const std::string activations = text("all_reduce ", kBatch * 6 * kWidth);
    EXPECT_THAT(all.forward, ElementsAre(activations, activations));
    EXPECT_THAT(all.backward, ElementsAre(activations, activations));
  });
}

// An all-reduce is a reduce-scatter and an all-gather: the same bytes, and those of the norms.
TEST(TensorCommunication, WithCutSequencesALayerExchangesTheSameBytes) {
  run_ranks_as_threads(2, [](Context& context) {
    const Exchanged all = exchanged(context, Sequence{.length = 6}, 6);
    const std::int64_t part = kBatch * 6 * kWidth / 2;
    const std::string gather = text("all_gather ", part), scatter = text("reduce_scatter ", part),
                      norm = text("all_reduce ", kWidth);
    EXPECT_THAT(all.forward, ElementsAre(gather, scatter, gather, scatter));
    EXPECT_THAT(all.backward, testing::UnorderedElementsAre(gather, scatter, norm, gather, scatter, norm));
  });
}

TEST(TensorCommunication, ALayerOfOneRankExchangesNothing) {
  run_ranks_as_threads(1, [](Context& context) {
    for (const MaybeSequence& sequence : {MaybeSequence(), MaybeSequence(Sequence{.length = 6})}) {
      const Exchanged all = exchanged(context, sequence, 6, /*bias=*/true);
      EXPECT_THAT(all.forward, ElementsAre());
      EXPECT_THAT(all.backward, ElementsAre());
    }
  });
}

}  // namespace
}  // namespace trireme::parallel
