// A user-defined model with a form that computes pieces of sequences. It trains as on one rank, and faults of
// the form are detected.

#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "trireme/base/error.h"
#include "trireme/parallel/context/ring_attention.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kTime = 9, kVocabulary = 11, kWidth = 8;

struct Sequences : data::Dataset {
  std::int64_t size() const override { return 40; }
  data::Example get(std::int64_t index) const override {
    std::vector<std::int64_t> tokens = {index % kVocabulary};
    while (tokens.size() <= kTime) tokens.push_back((tokens.back() * 3 + index % 2) % kVocabulary);
    const at::Tensor all = at::tensor(tokens, at::kLong);
    return {all.narrow(0, 0, kTime), all.narrow(0, 1, kTime)};
  }
};

data::DataSource sequences() {
  return {.name = "sequences",
          .train = std::make_shared<Sequences>(),
          .test = nullptr,
          .input_shape = {kTime},
          .num_classes = kVocabulary,
          .targets_per_sample = kTime};
}

enum class Fault { kNone, kForgotOthers, kThrows };

struct Net : model::Model, parallel::TensorParallelizable {
  explicit Net(Fault what, std::optional<parallel::ContextSequence> cut = std::nullopt)
      : fault(what), sequence(std::move(cut)), embedding(kVocabulary, kWidth), out(kWidth, kVocabulary) {
    register_module("embedding", embedding);
    inputs = register_module("inputs", torch::nn::Linear(kWidth, 3 * kWidth));
    register_module("out", out);
  }
  void initialise(std::uint64_t seed) override {
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      parameter.copy_(
          at::arange(parameter.numel(), at::kFloat).add(double(seed)).sin().mul(0.3).view_as(parameter));
  }
  at::Tensor forward(const at::Tensor& tokens) override {
    const at::Tensor x = embedding->forward(sequence ? own_tokens(tokens, 1, *sequence) : tokens);
    const auto parts = inputs->forward(x).unsqueeze(1).chunk(3, 3);
    const bool others = sequence && fault != Fault::kForgotOthers;
    const at::Tensor mixed =
        others ? ring_attention(parts[0], parts[1], parts[2], *sequence)
               : at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    if (fault == Fault::kThrows && is_training() && sequence && sequence->group.rank() == 1)
      throw DataError("behind the ring");
    return out->forward(x + mixed.squeeze(1));
  }
  parallel::TensorLimits tensor_limits() const override {
    return {.max_ranks = 1, .of_what = "no layer that is cut", .tokens = kTime};
  }
  parallel::TensorParallelModel tensor_parallel(
      const parallel::TensorParallelOptions& options) const override {
    const parallel::ContextSequence cut{.group = options.context.value(), .length = kTime};
    return {.model = std::make_shared<Net>(fault, cut), .cut_tokens = kTime};
  }
  const Fault fault;
  const std::optional<parallel::ContextSequence> sequence;
  torch::nn::Embedding embedding;
  torch::nn::Linear out, inputs{nullptr};
};

std::shared_ptr<Net> whole(Fault fault) {
  const auto net = std::make_shared<Net>(fault);
  net->initialise(3);
  return net;
}

RunConfig config() {
  RunConfig config;
  config.train = {.max_steps = 4, .global_batch = 8};
  config.optimizer = {.name = "sgd", .lr = 0.3, .momentum = 0.9};
  config.parallel.context = 2;
  config.comm.torch_threads = 1;
  config.comm.timeout_s = 60;
  return config;
}

std::string first_difference(int ranks, Fault fault) {
  std::string first = "equal";
  const data::DataSource data = sequences();
  run_ranks_as_threads(ranks, [&](Context& context) {
    const Comparison comparison = verify(
        config(), context, data, 2, {.make_model = [fault] { return whole(fault); }, .objective = nullptr});
    if (context.is_main() && !comparison.equal()) first = comparison.first().value().describe();
  });
  return first;
}

TEST(ContextForm, CustomModelTrainsLikeOneRank) {
  EXPECT_EQ(first_difference(2, Fault::kNone), "equal");
  EXPECT_EQ(first_difference(4, Fault::kNone), "equal");
}

TEST(ContextForm, NeglectedRemoteTokensAreFound) {
  EXPECT_THAT(first_difference(2, Fault::kForgotOthers), HasSubstr("step 1: loss differs"));
}

TEST(ContextForm, FailureAfterRingIsNamedToOthers) {
  const data::DataSource data = sequences();
  run_ranks_as_threads(2, [&](Context& context) {
    Trainer trainer(config(), context, data, whole(Fault::kThrows));
    if (context.rank() == 1) {
      EXPECT_THAT([&] { trainer.step(); }, ThrowsMessage<DataError>(HasSubstr("behind the ring")));
    } else {
      EXPECT_THAT([&] { trainer.step(); },
                  ThrowsMessage<CommError>(HasSubstr("a pass that all ranks compute together ended early")));
    }
  });
}

}  // namespace
}  // namespace trireme::train
