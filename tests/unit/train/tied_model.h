#pragma once
// The training task of tests that compare bits: four layers. The first and the last share a weight.

#include <ATen/ops/tensor.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/text.h"
#include "trireme/data/dataset.h"
#include "trireme/model/initialise.h"
#include "trireme/model/model.h"
#include "trireme/train/step/trainer.h"

namespace trireme::test {

constexpr std::int64_t kTime = 5, kVocabulary = 11, kWidth = 12;

/// Sequences of tokens. Each token follows from the previous one.
struct Sequences : data::Dataset {
  explicit Sequences(std::int64_t size) : samples(size) {}
  std::int64_t size() const override { return samples; }
  data::Example get(std::int64_t index) const override {
    std::vector<std::int64_t> tokens = {index % kVocabulary};
    while (tokens.size() <= kTime) tokens.push_back((tokens.back() * 3 + index % 2) % kVocabulary);
    const at::Tensor all = at::tensor(tokens, at::kLong);
    return {all.narrow(0, 0, kTime), all.narrow(0, 1, kTime)};
  }
  std::int64_t samples;
};

/// 53 samples in batches of 24. The third batch of an epoch has 5, fewer than there are micro-batches.
inline data::DataSource sequences() {
  return {.name = "sequences",
          .train = std::make_shared<Sequences>(53),
          .test = std::make_shared<Sequences>(13),
          .input_shape = {kTime},
          .num_classes = kVocabulary,
          .targets_per_sample = kTime};
}

/// Each layer has dropout. `dropout` is for ranks that are processes, since threads share one generator.
struct Tied : model::Model {
  explicit Tied(double share = 0) : dropout(share) {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, kWidth));
    down = register_module("down", torch::nn::Linear(kWidth, kWidth));
    model::initialise(*this, 7);
  }
  at::Tensor dropped(const at::Tensor& values) const {
    return torch::nn::functional::dropout(
        values, torch::nn::functional::DropoutFuncOptions().p(dropout).training(is_training()));
  }
  std::vector<model::Layer> layers() override {
    const auto hidden = [this](torch::nn::Linear linear) {
      return [this, linear](const Fields& x) mutable -> Fields {
        return dropped(x.at(0) + linear->forward(x.at(0)).tanh());
      };
    };
    return {make_layer(*this, "tokens", {tokens.ptr()},
                       [this](const Fields& x) -> Fields { return dropped(tokens->forward(x.at(0))); }),
            make_layer(*this, "up", {up.ptr()}, hidden(up)),
            make_layer(*this, "down", {down.ptr()}, hidden(down)),
            make_layer(*this, "head", {tokens.ptr()}, [this](const Fields& x) -> Fields {
              return dropped(x.at(0)).matmul(tokens->weight.t());
            })};
  }
  at::Tensor forward(const at::Tensor& x) override {
    Fields values = x;
    for (const model::Layer& layer : layers()) values = layer.forward(values);
    return values.at(0);
  }
  const double dropout;
  torch::nn::Embedding tokens{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};

/// Loss and norm of a step as hex floats.
inline std::string bits_of(const train::StepReport& report) {
  std::array<char, 80> line{};
  std::snprintf(line.data(), line.size(), "%a %a", report.loss, report.grad_norm.value_or(-1));
  return line.data();
}

}  // namespace trireme::test
