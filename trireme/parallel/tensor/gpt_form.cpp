#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <torch/nn/modules/embedding.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/parallel/tensor/attention.h"
#include "trireme/parallel/tensor/embedding.h"
#include "trireme/parallel/tensor/internal/shipped_forms.h"
#include "trireme/parallel/tensor/linear.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using comm::Group;
using MaybeSequence = std::optional<Sequence>;

template <class Layer>
at::Tensor run(Layer& layer, const at::Tensor& values, const MaybeSequence& sequence) {
  return sequence ? layer.forward(values, *sequence) : layer.forward(values);
}

/// Layer norm without bias, of whole sequences or of parts.
class Norm : public nn::Module {
 public:
  Norm(Group group, std::int64_t width)
      : group_(std::move(group)), weight_(register_parameter("weight", at::empty({width}))) {}
  at::Tensor forward(const at::Tensor& values, const MaybeSequence& sequence) {
    const at::Tensor weight = sequence ? copy_to_ranks(weight_, group_) : weight_;
    return at::layer_norm(values, weight_.sizes(), weight, {}, 1e-5);
  }

 private:
  const Group group_;
  at::Tensor weight_;
};

class FeedForward : public nn::Module {
 public:
  FeedForward(const Group& group, std::int64_t width)
      : c_fc_(register_module(
            "c_fc", std::make_shared<ColumnParallelLinear>(
                        group, ParallelLinearOptions{.in = width, .out = 4 * width, .bias = false}))),
        c_proj_(register_module(
            "c_proj", std::make_shared<RowParallelLinear>(
                          group, ParallelLinearOptions{.in = 4 * width, .out = width, .bias = false}))) {}
  at::Tensor forward(const at::Tensor& values, const MaybeSequence& sequence) {
    return run(*c_proj_, at::gelu(run(*c_fc_, values, sequence)), sequence);
  }

 private:
  std::shared_ptr<ColumnParallelLinear> c_fc_;
  std::shared_ptr<RowParallelLinear> c_proj_;
};

class Block : public nn::Module {
 public:
  Block(const Group& group, const ParallelAttentionOptions& attention)
      : ln_1_(register_module("ln_1", std::make_shared<Norm>(group, attention.width))),
        attn_(register_module("attn", std::make_shared<ParallelAttention>(group, attention))),
        ln_2_(register_module("ln_2", std::make_shared<Norm>(group, attention.width))),
        mlp_(register_module("mlp", std::make_shared<FeedForward>(group, attention.width))) {}
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

class GptInParts : public model::Model {
 public:
  GptInParts(const model::GptOptions& options, const TensorParallelOptions& form)
      : options_(options),
        group_(form.group),
        tokens_(std::make_shared<VocabularyParallelEmbedding>(group_, options.vocabulary, options.width)),
        positions_(options.block, options.width),
        last_norm_(std::make_shared<Norm>(group_, options.width)) {
    if (form.context) context_ = ContextSequence{.group = *form.context, .length = options.block};
    if (form.cut_sequences) sequence_ = Sequence{.length = context_ ? context_->own_size() : options.block};
    const auto transformer = register_module("transformer", std::make_shared<nn::Module>());
    transformer->register_module("wte", tokens_);
    transformer->register_module("wpe", positions_);
    const auto blocks = transformer->register_module("h", std::make_shared<nn::Module>());
    for (std::int64_t i = 0; i < options.layers; ++i) {
      const auto block = std::make_shared<Block>(
          group_, ParallelAttentionOptions{
                      .width = options.width, .heads = options.heads, .bias = false, .context = context_});
      blocks_.push_back(blocks->register_module(std::to_string(i), block));
    }
    transformer->register_module("ln_f", last_norm_);
  }

  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor values = embed(input);
    for (const auto& block : blocks_) values = block->forward(values, sequence_);
    return logits(values);
  }

  std::vector<model::Layer> layers() override {
    std::vector<model::Layer> chain = {
        model::make_layer(*this, "embedding", {tokens_, positions_.ptr()},
                          [this](const at::Tensor& input) { return embed(input); })};
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      chain.push_back(model::make_layer(*this, text("block ", i), {blocks_[i]},
                                        [this, block = blocks_[i]](const at::Tensor& values) {
                                          return block->forward(values, sequence_);
                                        }));
    }
    chain.push_back(model::make_layer(*this, "logits", {last_norm_, tokens_},
                                      [this](const at::Tensor& values) { return logits(values); }));
    return chain;
  }

  void initialise(std::uint64_t seed) override { model::initialise_gpt(*this, options_.layers, seed); }

 private:
  at::Tensor embed(const at::Tensor& input) {
    const std::int64_t time = input.size(1), block = options_.block;
    require(time <= block, "gpt: a sequence of ", time, " tokens; data.block allows ", block);
    // Later stages get parts, and take the length of the whole only from the model.
    require((!sequence_ && !context_) || time == block, "gpt: a sequence of ", time,
            " tokens; where sequences are split over ranks (parallel.sequence, parallel.context) each has ",
            block);
    const at::Tensor all = at::arange(time, input.options());
    const at::Tensor places = positions_->forward(context_ ? own_tokens(all, 0, *context_) : all);
    const at::Tensor tokens = context_ ? own_tokens(input, 1, *context_) : input;
    return run(*tokens_, tokens, sequence_) + (sequence_ ? own_part(places, 0, group_) : places);
  }
  at::Tensor logits(const at::Tensor& values) {
    const at::Tensor normed = last_norm_->forward(values, sequence_);
    return sequence_ ? tokens_->logits(normed, *sequence_) : tokens_->logits(normed);
  }

  const model::GptOptions options_;
  const Group group_;
  MaybeSequence sequence_;                  ///< of this rank's tokens, with context parallelism
  std::optional<ContextSequence> context_;  ///< none: sequences are whole
  std::shared_ptr<VocabularyParallelEmbedding> tokens_;
  nn::Embedding positions_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<Norm> last_norm_;
};

}  // namespace

TensorParallelModel form_of(const model::Gpt& whole, const TensorParallelOptions& options) {
  const bool has_all_classes = options.context && options.group.size() == 1;
  return {.model = std::make_shared<GptInParts>(whole.options(), options),
          .cut_classes = has_all_classes ? 0 : whole.options().vocabulary,
          .cut_tokens = options.context ? whole.options().block : 0};
}

TensorLimits limits_of(const model::Gpt& whole) {
  const std::int64_t heads = whole.options().heads;
  return {.max_ranks = heads,
          .of_what = text(heads, heads == 1 ? " head" : " heads"),
          .sequences = true,
          .tokens = whole.options().block};
}

}  // namespace trireme::parallel
