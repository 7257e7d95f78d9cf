#include "trireme/model/gpt.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/model/initialise.h"

namespace trireme::model {

namespace nn = torch::nn;

/// Layer norm without bias.
class GptNorm : public nn::Module {
 public:
  explicit GptNorm(std::int64_t width) : weight_(register_parameter("weight", at::empty({width}))) {}
  at::Tensor forward(const at::Tensor& values) const {
    return at::layer_norm(values, weight_.sizes(), weight_, {}, 1e-5);
  }

 private:
  at::Tensor weight_;
};

namespace {

nn::Linear linear(std::int64_t in, std::int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

class Attention : public nn::Module {
 public:
  Attention(std::int64_t width, std::int64_t heads)
      : heads_(heads),
        c_attn_(register_module("c_attn", linear(width, 3 * width))),
        c_proj_(register_module("c_proj", linear(width, width))) {}

  at::Tensor forward(const at::Tensor& values) {
    const auto parts = c_attn_->forward(values).chunk(3, 2);
    const at::Tensor mixed = at::scaled_dot_product_attention(per_head(parts[0]), per_head(parts[1]),
                                                              per_head(parts[2]), /*attn_mask=*/{},
                                                              /*dropout_p=*/0, /*is_causal=*/true);
    return c_proj_->forward(mixed.transpose(1, 2).reshape(values.sizes()));
  }

 private:
  /// (batch, time, width) -> (batch, heads, time, width / heads).
  at::Tensor per_head(const at::Tensor& part) const {
    return part.unflatten(2, {heads_, part.size(2) / heads_}).transpose(1, 2);
  }

  const std::int64_t heads_;
  nn::Linear c_attn_, c_proj_;
};

class FeedForward : public nn::Module {
 public:
  explicit FeedForward(std::int64_t width)
      : c_fc_(register_module("c_fc", linear(width, 4 * width))),
        c_proj_(register_module("c_proj", linear(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& values) { return c_proj_->forward(at::gelu(c_fc_->forward(values))); }

 private:
  nn::Linear c_fc_, c_proj_;
};

}  // namespace

class GptBlock : public nn::Module {
 public:
  GptBlock(std::int64_t width, std::int64_t heads)
      : ln_1_(register_module("ln_1", std::make_shared<GptNorm>(width))),
        attn_(register_module("attn", std::make_shared<Attention>(width, heads))),
        ln_2_(register_module("ln_2", std::make_shared<GptNorm>(width))),
        mlp_(register_module("mlp", std::make_shared<FeedForward>(width))) {}

  at::Tensor forward(const at::Tensor& values) {
    const at::Tensor attended = values + attn_->forward(ln_1_->forward(values));
    return attended + mlp_->forward(ln_2_->forward(attended));
  }

 private:
  std::shared_ptr<GptNorm> ln_1_;
  std::shared_ptr<Attention> attn_;
  std::shared_ptr<GptNorm> ln_2_;
  std::shared_ptr<FeedForward> mlp_;
};

Gpt::Gpt(const GptOptions& options)
    : options_(options),
      tokens_(options.vocabulary, options.width),
      positions_(options.block, options.width) {
  require(options.layers >= 1 && options.heads >= 1 && options.width % options.heads == 0,
          "gpt: model.width is ", options.width, ", which is no multiple of model.heads = ", options.heads);
  const auto transformer = register_module("transformer", std::make_shared<nn::Module>());
  transformer->register_module("wte", tokens_);
  transformer->register_module("wpe", positions_);
  const auto blocks = transformer->register_module("h", std::make_shared<nn::Module>());
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const auto block = std::make_shared<GptBlock>(options.width, options.heads);
    blocks_.push_back(blocks->register_module(std::to_string(i), block));
  }
  last_norm_ = transformer->register_module("ln_f", std::make_shared<GptNorm>(options.width));
}

at::Tensor Gpt::embed(const at::Tensor& input) {
  const std::int64_t time = input.size(1);
  require(time <= options_.block, "gpt: a sequence of ", time, " tokens; data.block allows ",
          options_.block);
  const at::Tensor places = at::arange(time, input.options());
  return tokens_->forward(input) + positions_->forward(places);
}

at::Tensor Gpt::logits(const at::Tensor& values) const {
  return at::linear(last_norm_->forward(values), tokens_->weight);
}

at::Tensor Gpt::forward(const at::Tensor& input) {
  at::Tensor values = embed(input);
  for (const auto& block : blocks_) values = block->forward(values);
  return logits(values);
}

std::vector<Layer> Gpt::layers() {
  std::vector<Layer> chain = {make_layer(*this, "embedding", {tokens_.ptr(), positions_.ptr()},
                                         [this](const at::Tensor& input) { return embed(input); })};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    chain.push_back(
        make_layer(*this, text("block ", i), {blocks_[i]},
                   [block = blocks_[i]](const at::Tensor& input) { return block->forward(input); }));
  }
  // The logits use the token embedding. On another rank than the first layer, it is a tied copy.
  chain.push_back(make_layer(*this, "logits", {last_norm_, tokens_.ptr()},
                             [this](const at::Tensor& input) { return logits(input); }));
  return chain;
}

void initialise_gpt(torch::nn::Module& module, std::int64_t layers, std::uint64_t seed) {
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(layers));
  for (const ParameterBox& box : parameter_boxes(module)) {
    if (box.global_sizes.size() == 1) {
      fill_constant(box, 1);
    } else {
      fill_normal(box, box.name.ends_with("c_proj.weight") ? residual : 0.02, seed);
    }
  }
}

}  // namespace trireme::model
