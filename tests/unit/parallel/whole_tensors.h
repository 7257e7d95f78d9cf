#pragma once
// Joins the parts of ranks, and detects parts that differ between ranks.

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/model/parameter_box.h"
#include "trireme/parallel/tensor/cut.h"

namespace trireme::test {

/// Whole tensors by name, from the boxes of several ranks. Parts that two ranks hold must be bitwise equal.
class WholeTensors {
 public:
  /// Adds the box's part of `tensor`, which has the shape of its parameter. Any thread may call it.
  void add(const model::ParameterBox& box, const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    ASSERT_TRUE(tensor.defined()) << box.name << " has no gradient";
    const at::Tensor part = box.part_of(tensor).detach();
    auto [place, is_new] = tensors_.try_emplace(box.name);
    Tensor& whole = place->second;
    if (is_new) {
      whole.values = at::zeros(box.global_sizes, part.options());
      whole.times = at::zeros(box.global_sizes, at::kLong);
    }
    ASSERT_EQ(whole.values.sizes().vec(), box.global_sizes) << box.name;
    model::ParameterBox there = box;
    there.places = box.offsets;
    at::Tensor values = there.part_of(whole.values), times = there.part_of(whole.times);
    if (times.gt(0).any().item<bool>()) {
      EXPECT_TRUE(at::equal(values, part)) << box.name << " differs between ranks";
    }
    values.copy_(part);
    times.add_(1);
  }

  void add_values(const torch::nn::Module& module) {
    for (const auto& box : model::parameter_boxes(module)) add(box, box.parameter);
  }
  void add_gradients(const torch::nn::Module& module) {
    for (const auto& box : model::parameter_boxes(module)) add(box, box.parameter.grad());
  }

  /// Fails unless every element is held exactly once, or by all `ranks` if the parameter is replicated.
  at::Tensor get(const std::string& name, int ranks) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      ADD_FAILURE() << "nobody holds " << name;
      return {};
    }
    const at::Tensor& times = found->second.times;
    EXPECT_TRUE(times.eq(1).all().item<bool>() || times.eq(ranks).all().item<bool>())
        << name << " is not held once, or by all: " << times;
    return found->second.values;
  }

 private:
  struct Tensor {
    at::Tensor values;
    at::Tensor times;  ///< number of ranks that hold each element
  };
  std::mutex mutex_;
  std::map<std::string, Tensor> tensors_;
};

/// The group's operations since the object was created, at most 64.
class OperationsSince {
 public:
  explicit OperationsSince(const comm::Group& group) : group_(group) {
    const auto records = group_.recent_operations();
    if (!records.empty()) last_ = records.back().number;
  }
  /// "all_reduce 84", ... with the number of elements (of a part for operations with parts).
  std::vector<std::string> list() const {
    std::vector<std::string> all;
    for (const auto& record : group_.recent_operations())
      if (record.number > last_) all.push_back(record.operation + " " + std::to_string(record.numel));
    return all;
  }

 private:
  const comm::Group group_;
  std::uint64_t last_ = 0;
};

/// The part of a whole tensor that a rank has if it is split along `dim`.
inline at::Tensor part(const at::Tensor& whole, std::int64_t dim, const comm::Group& group) {
  const auto range = parallel::part_of_rank(whole.size(dim), group.rank(), group.size());
  return whole.narrow(dim, range.begin, range.size);
}

/// The largest difference, relative to the largest expected number.
inline double difference(const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() != expected.sizes() || found.numel() == 0)
    return found.sizes() == expected.sizes() ? 0 : 1;
  const double scale = expected.abs().max().item<double>();
  return (found - expected).abs().max().item<double>() / std::max(scale, 1e-300);
}

/// Bound on differences in f64. tensor_model_test.cpp derives it.
constexpr double kRoundingBound = 1e-12;

/// Checks that values are bitwise equal, and gradients equal within the bound, to those of a module with
/// whole parameters.
inline void expect_same_parameters(const torch::nn::Module& expected, const WholeTensors& values,
                                   const WholeTensors& gradients, int ranks) {
  for (const auto& parameter : expected.named_parameters()) {
    EXPECT_TRUE(at::equal(values.get(parameter.key(), ranks), parameter.value())) << parameter.key();
    EXPECT_LE(difference(gradients.get(parameter.key(), ranks), parameter.value().grad()), kRoundingBound)
        << parameter.key();
  }
}

}  // namespace trireme::test
