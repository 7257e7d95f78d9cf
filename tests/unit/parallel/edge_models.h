#pragma once
// Models for tests of transfers between stages: skip connections, and several tensors, only some of which
// have gradients. Each model has two forms, one forward and a list of layers, with the same values.

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mse_loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/parallel/small_models.h"
#include "trireme/model/layer.h"

namespace trireme::test {

struct EdgeModel : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  virtual std::vector<model::Layer> layers() = 0;
  virtual at::Tensor input(std::int64_t size) const = 0;
  virtual at::Tensor target(std::int64_t size) const = 0;
};

/// From 12 to 8 to 4 numbers and up again. Each layer on the way up also gets the values of the same level on
/// the way down. "outer" is used twice.
struct UNet : EdgeModel {
  UNet()
      : stem(add("stem", 12, 12)),
        down1(add("down1", 12, 8)),
        down2(add("down2", 8, 4)),
        middle1(add("middle1", 4, 4)),
        middle2(add("middle2", 4, 4)),
        up1(add("up1", 4 + 8, 8)),
        up2(add("up2", 8 + 12, 12)),
        head(add("head", 12 + 12, 3)) {
    fill_parameters(*this);
  }
  torch::nn::Linear add(const std::string& name, std::int64_t from, std::int64_t to) {
    return register_module(name, torch::nn::Linear(from, to));
  }
  static at::Tensor both(const at::Tensor& x, const at::Tensor& skip) { return at::cat({x, skip}, 1); }

  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor outer = stem->forward(input).tanh(), inner = down1->forward(outer).tanh();
    at::Tensor x = middle1->forward(down2->forward(inner).tanh()).tanh();
    x = middle2->forward(x).tanh();
    x = up2->forward(both(up1->forward(both(x, inner)).tanh(), outer)).tanh();
    return head->forward(both(x, outer));
  }

  std::vector<model::Layer> layers() override {
    const auto plain = [&](const std::string& name, torch::nn::Linear& linear) {
      return model::make_layer(*this, name, {linear.ptr()},
                               [linear](const at::Tensor& x) mutable { return linear->forward(x).tanh(); });
    };
    const auto down = [&](const std::string& name, torch::nn::Linear& linear, const std::string& skip) {
      model::Layer layer =
          model::make_layer(*this, name, {linear.ptr()}, [linear](const model::Tensors& x) mutable {
            return model::Tensors{linear->forward(x[0]).tanh(), x[0]};
          });
      layer.gives = {skip};
      return layer;
    };
    const auto up = [&](const std::string& name, torch::nn::Linear& linear, const std::string& skip) {
      model::Layer layer =
          model::make_layer(*this, name, {linear.ptr()}, [linear](const model::Tensors& x) mutable {
            return model::Tensors{linear->forward(both(x[0], x[1])).tanh()};
          });
      layer.takes = {skip};
      return layer;
    };
    std::vector<model::Layer> chain = {plain("stem", stem),           down("down1", down1, "outer"),
                                       down("down2", down2, "inner"), plain("middle1", middle1),
                                       plain("middle2", middle2),     up("up1", up1, "inner"),
                                       up("up2", up2, "outer"),       up("head", head, "outer")};
    chain.back().forward = [this](const model::Tensors& x) {
      return model::Tensors{head->forward(both(x[0], x[1]))};
    };
    return chain;
  }
  at::Tensor input(std::int64_t size) const override { return numbers({size, 12}, 3); }
  at::Tensor target(std::int64_t size) const override { return numbers({size, 3}, 5); }

  torch::nn::Linear stem, down1, down2, middle1, middle2, up1, up2, head;
};

/// Input: tokens. Between layers: hidden values, a mask, positions (integers) and scales (no gradient).
struct MaskedModel : EdgeModel {
  static constexpr std::int64_t kWords = 9, kWidth = 6, kLength = 5;

  /// `tied`: the last layer shares the embedding.
  explicit MaskedModel(bool tied) : is_tied(tied) {
    embedding = register_module("embedding", torch::nn::Embedding(kWords, kWidth));
    for (int i = 0; i < 6; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    head = register_module("head", torch::nn::Linear(kWidth, kWords));
    fill_parameters(*this);
  }

  model::Tensors begin(const at::Tensor& tokens) {
    const at::Tensor mask = tokens.ne(0).unsqueeze(2), positions = at::arange(kLength).expand(tokens.sizes());
    return {embedding->forward(tokens), mask, positions,
            mask.sum(1, true).add(1).to(at::kFloat).reciprocal()};
  }
  static model::Tensors block(torch::nn::Linear& linear, const model::Tensors& x) {
    const at::Tensor mean = x[0].masked_fill(x[1].logical_not(), 0).sum(1, true) * x[3];
    const at::Tensor place = x[2].unsqueeze(2).to(at::kFloat) / kLength;
    return {x[0] + linear->forward(mean + x[0] * place).tanh(), x[1], x[2], x[3]};
  }
  at::Tensor end(const model::Tensors& x) {
    const at::Tensor mean = (x[0] * x[1]).sum(1) * x[3].squeeze(2);
    return is_tied ? mean.matmul(embedding->weight.t()) : head->forward(mean);
  }

  at::Tensor forward(const at::Tensor& tokens) override {
    model::Tensors values = begin(tokens);
    for (torch::nn::Linear& linear : blocks) values = block(linear, values);
    return end(values);
  }

  std::vector<model::Layer> layers() override {
    std::vector<model::Layer> chain = {model::make_layer(
        *this, "begin", {embedding.ptr()}, [this](const model::Tensors& x) { return begin(x[0]); })};
    for (torch::nn::Linear& linear : blocks) {
      chain.push_back(
          model::make_layer(*this, "block", {linear.ptr()},
                            [linear](const model::Tensors& x) mutable { return block(linear, x); }));
    }
    const std::shared_ptr<torch::nn::Module> last =
        is_tied ? std::shared_ptr<torch::nn::Module>(embedding.ptr()) : head.ptr();
    chain.push_back(model::make_layer(*this, "end", {last},
                                      [this](const model::Tensors& x) { return model::Tensors{end(x)}; }));
    return chain;
  }
  at::Tensor input(std::int64_t size) const override {
    return at::arange(size * kLength).mul(7).remainder(kWords).reshape({size, kLength});
  }
  at::Tensor target(std::int64_t size) const override { return numbers({size, kWords}, 5); }

  const bool is_tied;
  torch::nn::Embedding embedding = nullptr;
  std::vector<torch::nn::Linear> blocks;
  torch::nn::Linear head = nullptr;
};

using MakeEdgeModel = std::function<std::shared_ptr<EdgeModel>()>;

inline std::shared_ptr<EdgeModel> make_unet() { return std::make_shared<UNet>(); }
inline std::shared_ptr<EdgeModel> make_masked() { return std::make_shared<MaskedModel>(false); }
inline std::shared_ptr<EdgeModel> make_tied() { return std::make_shared<MaskedModel>(true); }

}  // namespace trireme::test
