// The tensor-parallel form of the shipped transformer gives the same forward, loss and gradients. All in f64.
// The ranks add the same products in another order. The error of a sum of n numbers is at most n * 2^-53 of
// the sum of their magnitudes. One pass has at most about 40 sums of 48 numbers, and 40 * 48 * 2^-53 is
// 2e-13. test::kRoundingBound allows five times that. A wrong term has an error of more than 1e-3.
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
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
#include "trireme/parallel/tensor/collectives.h"
#include "trireme/parallel/tensor/cross_entropy.h"
#include "trireme/parallel/tensor/joint_pass.h"
#include "trireme/parallel/tensor/tensor_parallel_model.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::Group;
using comm::run_ranks_as_threads;
using test::difference;
using test::numbers;
using testing::ElementsAre;

constexpr std::int64_t kBatch = 4, kTime = 7, kVocabulary = 11, kWidth = 12, kHeads = 4, kLayers = 2;
constexpr std::uint64_t kSeed = 5;

/// In f64, with the initial values of the seed.
model::Gpt whole_gpt(std::int64_t block = kTime) {
  model::Gpt gpt(
      {.layers = kLayers, .heads = kHeads, .width = kWidth, .block = block, .vocabulary = kVocabulary});
  gpt.to(at::kDouble);
  gpt.initialise(kSeed);
  return gpt;
}

enum class Between { kReplicated, kSequencesCut };

/// The part of the rank.
std::shared_ptr<model::Model> gpt_in_parts(const Group& group, Between between, std::int64_t block = kTime) {
  const auto form = make_tensor_parallel(
      whole_gpt(block), {.group = group, .cut_sequences = between == Between::kSequencesCut});
  EXPECT_EQ(form.cut_classes, kVocabulary);
  form.model->initialise(kSeed);
  return form.model;
}

/// Tokens that contain the lowest and the highest value. Some are targets, and one is ignored.
at::Tensor some_tokens(std::int64_t from) {
  return (at::arange(kBatch * kTime, at::kLong).mul(3).add(from).remainder(kVocabulary))
      .reshape({kBatch, kTime});
}

struct OneRank {
  OneRank() : model(whole_gpt()) {
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
  Between between;
};

class ParallelTransformer : public testing::TestWithParam<TensorMesh> {
 protected:
  int ranks() const { return GetParam().ranks; }
};

TEST_P(ParallelTransformer, MatchesOneRankInEveryGradient) {
  const OneRank expected;
  test::WholeTensors values, gradients;
  run_ranks_as_threads(ranks(), [&](Context& context) {
    const Group& group = context.world();
    const auto model = gpt_in_parts(group, GetParam().between);
    values.add_values(*model);
    for (int pass = 0; pass < 2; ++pass) {
      model->zero_grad();
      const at::Tensor logits = model->forward(some_tokens(0));
      const at::Tensor loss = vocabulary_cross_entropy(
          logits, some_tokens(1), group,
          {.vocabulary = kVocabulary, .label_smoothing = 0.1, .ignored_classes = {4}});
      loss.backward();
      EXPECT_LE(difference(join_parts(logits, 2, kVocabulary, group), expected.logits), test::kRoundingBound);
      EXPECT_LE(difference(loss, expected.loss), test::kRoundingBound);
    }
    gradients.add_gradients(*model);
  });
  for (const auto& parameter : expected.model.named_parameters()) {
    EXPECT_TRUE(at::equal(values.get(parameter.key(), ranks()), parameter.value())) << parameter.key();
    EXPECT_LE(difference(gradients.get(parameter.key(), ranks()), parameter.value().grad()),
              test::kRoundingBound)
        << parameter.key();
  }
}

TEST_P(ParallelTransformer, EvaluatesWithoutGradients) {
  const OneRank expected;
  run_ranks_as_threads(ranks(), [&](Context& context) {
    const auto model = gpt_in_parts(context.world(), GetParam().between);
    const at::NoGradGuard no_grad;
    const at::Tensor logits = model->forward(some_tokens(0));
    EXPECT_FALSE(logits.requires_grad());
    EXPECT_LE(difference(join_parts(logits, 2, kVocabulary, context.world()), expected.logits),
              test::kRoundingBound);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ParallelTransformer,
    testing::Values(TensorMesh{1, Between::kReplicated}, TensorMesh{1, Between::kSequencesCut},
                    TensorMesh{2, Between::kReplicated}, TensorMesh{2, Between::kSequencesCut},
                    TensorMesh{3, Between::kReplicated}, TensorMesh{3, Between::kSequencesCut},
                    TensorMesh{4, Between::kReplicated}, TensorMesh{4, Between::kSequencesCut}),
    [](const auto& instance) {
      return text(instance.param.ranks, "Ranks",
                  instance.param.between == Between::kSequencesCut ? "SequencesCut" : "Replicated");
    });

// Each pair of tensor-parallel ranks has one half of the batch. Gradients are summed over the pairs.
TEST(TensorAndDataParallel, TwoByTwoRanksEqualOne) {
  for (const Between between : {Between::kReplicated, Between::kSequencesCut}) {
    SCOPED_TRACE(between == Between::kSequencesCut ? "sequences cut" : "replicated");
    const OneRank expected;
    test::WholeTensors gradients;
    run_ranks_as_threads(4, [&](Context& context) {
      comm::Mesh mesh(context, {{"dp", 2}, {"tp", 2}});
      const Group& group = mesh.group("tp");
      const auto model = gpt_in_parts(group, between);
      DistributedDataParallel ddp(mesh.group("dp"), model, {.scale = ReduceScale::kSum});
      const auto own = [&](const at::Tensor& batch) { return test::part(batch, 0, mesh.group("dp")); };
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        const JointPass pass(context.world());
        const at::Tensor logits = model->forward(own(some_tokens(0)));
        vocabulary_cross_entropy(logits, own(some_tokens(1)), group,
                                 {.vocabulary = kVocabulary, .label_smoothing = 0.1, .ignored_classes = {4}})
            .backward();
      }
      if (mesh.coordinate("dp") == 1) gradients.add_gradients(*model);
    });
    for (const auto& parameter : expected.model.named_parameters())
      EXPECT_LE(difference(gradients.get(parameter.key(), 2), parameter.value().grad()), test::kRoundingBound)
          << parameter.key();
  }
}

struct HybridMesh {
  int data;
  std::string schedule;
  Between between;
};

/// `data` pipelines of two stages, each split over two ranks. The token embedding is tied over both stages.
void expect_hybrid_equals_one_rank(const HybridMesh& of) {
  SCOPED_TRACE(text(of.data, " pipelines, ", of.schedule,
                    of.between == Between::kSequencesCut ? ", sequences cut" : ""));
  const OneRank expected;
  test::WholeTensors gradients;
  run_ranks_as_threads(4 * of.data, [&](Context& context) {
    comm::Mesh mesh(context, {{"dp", of.data}, {"pp", 2}, {"tp", 2}});
    const Group &group = mesh.group("tp"), &data = mesh.group("dp");
    const auto model = gpt_in_parts(group, of.between);
    Pipeline pipe(context, {.pipeline = mesh.group("pp"), .data = data}, model->layers(),
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
    for (const auto& box : model::parameter_boxes(*model)) {
      const auto is_it = [&](const auto& parameter) { return parameter.first == box.name; };
      const bool is_elsewhere = box.name == "transformer.wte.weight" && !pipe.has_first_stage();
      if (data.rank() == 0 && !is_elsewhere && std::ranges::any_of(held, is_it))
        gradients.add(box, box.parameter.grad());
    }
  });
  for (const auto& parameter : expected.model.named_parameters())
    EXPECT_LE(difference(gradients.get(parameter.key(), 2), parameter.value().grad() / kBatch),
              test::kRoundingBound)
        << parameter.key();
}

TEST(TensorParallelPipeline, TwoByTwoRanksEqualOne) {
  for (const std::string schedule : {"1f1b", "interleaved-1f1b", "zb-h1"})
    for (const Between between : {Between::kReplicated, Between::kSequencesCut})
      expect_hybrid_equals_one_rank({1, schedule, between});
}

TEST(TensorParallelPipeline, EightRanksInMeshEqualOne) {
  for (const Between between : {Between::kReplicated, Between::kSequencesCut})
    expect_hybrid_equals_one_rank({2, "1f1b", between});
}

/// The operations of a block in a forward and a backward pass over kBatch sequences of kEven tokens.
constexpr std::int64_t kEven = 6;
struct Exchanged {
  std::vector<std::string> forward, backward;
};
Exchanged exchanged(Context& context, Between between) {
  const Group& group = context.world();
  const auto gpt = gpt_in_parts(group, between, kEven);
  const model::Layer block = gpt->layers()[1];
  at::Tensor input = numbers({kBatch, kEven, kWidth}, 1).to(at::kDouble);
  if (between == Between::kSequencesCut) input = own_part(input, 1, group);
  input.requires_grad_();
  Exchanged all;
  const test::OperationsSince forward(group);
  const at::Tensor output = block.forward(input).at(0);
  all.forward = forward.list();
  const test::OperationsSince backward(group);
  output.sum().backward();
  all.backward = backward.list();
  return all;
}

TEST(TensorCommunication, LayerTakesTwoAllReducesPerPass) {
  run_ranks_as_threads(2, [](Context& context) {
    const Exchanged all = exchanged(context, Between::kReplicated);
    const std::string activations = text("all_reduce ", kBatch * kEven * kWidth);
    EXPECT_THAT(all.forward, ElementsAre(activations, activations));
    EXPECT_THAT(all.backward, ElementsAre(activations, activations));
  });
}

// An all-reduce is a reduce-scatter and an all-gather. So the bytes are the same, plus those of the norms.
TEST(TensorCommunication, CutSequencesExchangeSameBytes) {
  run_ranks_as_threads(2, [](Context& context) {
    const Exchanged all = exchanged(context, Between::kSequencesCut);
    const std::int64_t part = kBatch * kEven * kWidth / 2;
    const std::string gather = text("all_gather ", part), scatter = text("reduce_scatter ", part),
                      norm = text("all_reduce ", kWidth);
    EXPECT_THAT(all.forward, ElementsAre(gather, scatter, gather, scatter));
    EXPECT_THAT(all.backward, testing::UnorderedElementsAre(gather, scatter, norm, gather, scatter, norm));
  });
}

TEST(TensorCommunication, ALayerOfOneRankExchangesNothing) {
  run_ranks_as_threads(1, [](Context& context) {
    for (const Between between : {Between::kReplicated, Between::kSequencesCut}) {
      const Exchanged all = exchanged(context, between);
      EXPECT_THAT(all.forward, ElementsAre());
      EXPECT_THAT(all.backward, ElementsAre());
    }
  });
}

}  // namespace
}  // namespace trireme::parallel
