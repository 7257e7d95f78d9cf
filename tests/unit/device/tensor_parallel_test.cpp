// Tensor-parallel layers give the results of the CPU on a device whose memory the host cannot access.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/support/stand_in_device.h"
#include "trireme/comm/context.h"
#include "trireme/model/deferred.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/tensor/attention.h"
#include "trireme/parallel/tensor/cross_entropy.h"
#include "trireme/parallel/tensor/embedding.h"
#include "trireme/parallel/tensor/gradient_norm.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kVocabulary = 7, kTime = 5;

struct Net : torch::nn::Module {
  explicit Net(const comm::Group& group)
      : keys(std::make_shared<DropoutKeys>(1)),
        tokens(
            register_module("tokens", std::make_shared<VocabularyParallelEmbedding>(group, kVocabulary, 12))),
        attention(register_module(
            "attention",
            std::make_shared<ParallelAttention>(
                group, ParallelAttentionOptions{.width = 12, .heads = 3, .dropout = 0.2, .keys = keys}))) {
    model::initialise(*this, 3);
  }
  std::shared_ptr<DropoutKeys> keys;
  std::shared_ptr<VocabularyParallelEmbedding> tokens;
  std::shared_ptr<ParallelAttention> attention;
};

/// Loss, norm, and this rank's gradients, on the CPU.
using Results = std::map<std::string, at::Tensor>;

Results pass(comm::Context& context, bool is_cut) {
  const comm::Group& group = context.world();
  Net net(group);
  model::move_to(model::make_layer(net, "net", {net.tokens, net.attention}, nullptr), context.device());
  net.keys->begin(4);
  const at::Tensor input = at::arange(2 * kTime, at::kLong).remainder(kVocabulary).view({2, kTime});
  const at::Tensor tokens = input.to(context.device());
  const Sequence sequence{.length = kTime};
  const at::Tensor logits =
      is_cut ? net.tokens->logits(net.attention->forward(net.tokens->forward(tokens, sequence), sequence),
                                  sequence)
             : net.tokens->logits(net.attention->forward(net.tokens->forward(tokens)));
  const at::Tensor loss =
      vocabulary_cross_entropy(logits, tokens, group, {.vocabulary = kVocabulary, .label_smoothing = 0.1});
  loss.backward();
  Results results = {{"loss", loss.detach().cpu()}, {"norm", gradient_norm(net, group).cpu()}};
  for (const auto& parameter : net.named_parameters())
    results[parameter.key()] = parameter.value().grad().cpu();
  return results;
}

TEST(TensorParallelOnStandIn, GivesTheNumbersOfTheCpu) {
  for (const bool is_cut : {false, true}) {
    std::mutex mutex;
    std::map<int, Results> expected;
    comm::run_ranks_as_threads(3, [&](comm::Context& context) {
      Results results = pass(context, is_cut);
      const std::lock_guard lock(mutex);
      expected[context.rank()] = std::move(results);
    });
    comm::run_ranks_as_threads(
        3,
        [&](comm::Context& context) {
          ASSERT_FALSE(context.device().is_cpu());
          for (const auto& [name, found] : pass(context, is_cut)) {
            const at::Tensor& on_cpu = expected.at(context.rank()).at(name);
            // About 100 f32 roundings of 2^-24 each, of numbers up to the largest one.
            EXPECT_LE((found - on_cpu).abs().max().item<double>(), 1e-5 * on_cpu.abs().max().item<double>())
                << name << " on rank " << context.rank();
          }
        },
        {.device = test::kStandInDevice});
  }
}

}  // namespace
}  // namespace trireme::parallel
