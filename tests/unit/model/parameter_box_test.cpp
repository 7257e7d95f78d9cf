// Parts of parameters have the numbers of the same part of the whole parameter.
#include "trireme/model/parameter_box.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "trireme/model/initialise.h"

namespace trireme::model {
namespace {

constexpr std::uint64_t kSeed = 3;

ParameterBox box_of(at::IntArrayRef global, at::IntArrayRef offsets, at::IntArrayRef sizes,
                    at::ScalarType type) {
  return {.name = "weight",
          .global_sizes = global.vec(),
          .offsets = offsets.vec(),
          .sizes = sizes.vec(),
          .parameter = at::empty(sizes, type),
          .places = std::vector<std::int64_t>(global.size(), 0)};
}

at::Tensor part_of(at::Tensor whole, const ParameterBox& box) {
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim)
    whole = whole.narrow(static_cast<std::int64_t>(dim), box.offsets[dim], box.sizes[dim]);
  return whole;
}

TEST(ParameterBox, PartHasNumbersOfWhole) {
  const std::vector<std::vector<std::int64_t>> offsets = {{0, 0, 0}, {1, 2, 0}, {2, 0, 3}, {0, 4, 1}},
                                               sizes = {{4, 5, 6}, {2, 3, 6}, {1, 5, 2}, {4, 0, 4}};
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor uniform = at::empty({4, 5, 6}, type), normal = at::empty({4, 5, 6}, type);
    fill_uniform(uniform, 0.5, kSeed, "weight");
    fill_normal(normal, 0.5, kSeed, "weight");
    EXPECT_FALSE(at::equal(uniform, normal));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const ParameterBox box = box_of({4, 5, 6}, offsets[i], sizes[i], type);
      fill_uniform(box, 0.5, kSeed);
      EXPECT_TRUE(at::equal(box.parameter, part_of(uniform, box))) << "box " << i;
      fill_normal(box, 0.5, kSeed);
      EXPECT_TRUE(at::equal(box.parameter, part_of(normal, box))) << "box " << i;
    }
  }
}

/// The second and the last row of a linear layer with five rows, without and with its own bias.
struct TwoRows : torch::nn::Module, HoldsParts {
  TwoRows()
      : weight(register_parameter("weight", at::empty({2, 3}))),
        bias(register_parameter("bias", at::empty({5}))) {}
  std::vector<ParameterBox> boxes() const override {
    const ParameterBox second = {.name = "weight",
                                 .global_sizes = {5, 3},
                                 .offsets = {1, 0},
                                 .sizes = {1, 3},
                                 .parameter = weight,
                                 .places = {0, 0}};
    ParameterBox last = second;
    last.offsets[0] = 4;
    last.places[0] = 1;
    return {second, last};
  }
  at::Tensor weight, bias;
};

TEST(ParameterBox, ModelOfPartsBeginsWithWholeValues) {
  torch::nn::Module parts, whole;
  const auto rows = parts.register_module("layer", std::make_shared<TwoRows>());
  auto linear = whole.register_module("layer", torch::nn::Linear(3, 5));
  initialise(parts, kSeed);
  initialise(whole, kSeed);
  EXPECT_TRUE(at::equal(rows->weight[0], linear->weight[1]));
  EXPECT_TRUE(at::equal(rows->weight[1], linear->weight[4]));
  EXPECT_TRUE(at::equal(rows->bias, linear->bias));
}

TEST(ParameterBox, BoxesHaveParameterNamesAndGradientParts) {
  torch::nn::Module model;
  const auto rows = model.register_module("layer", std::make_shared<TwoRows>());
  const auto boxes = parameter_boxes(model);
  ASSERT_EQ(boxes.size(), 3);
  const at::Tensor gradient = at::empty({2, 3}).normal_();
  for (const ParameterBox& box : boxes) {
    if (box.is_whole()) {
      EXPECT_EQ(box.name, "layer.bias");
      continue;
    }
    EXPECT_EQ(box.name, "layer.weight");
    EXPECT_TRUE(at::equal(box.part_of(gradient)[0], gradient[box.offsets[0] == 1 ? 0 : 1]));
  }
}

}  // namespace
}  // namespace trireme::model
