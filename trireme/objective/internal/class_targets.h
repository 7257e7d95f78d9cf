#pragma once
// Targets that are classes, and outputs with a row of numbers for each: their checks, for every loss of them.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme::objective {

/// f32, (target, class). Throws InvalidArgument unless there is a row for each target.
at::Tensor rows_of(const at::Tensor& output, const at::Tensor& target);

/// A loss in messages.
struct ClassLossWords {
  std::string loss;         ///< "a cross entropy"
  std::string for_numbers;  ///< the advice where targets are numbers
};

/// A value; thread-safe.
class ClassTargets {
 public:
  /// Throws InvalidArgument for data without classes.
  ClassTargets(ClassLossWords words, const data::DataSource& data, std::vector<std::int64_t> ignored = {});

  std::int64_t num_classes() const { return num_classes_; }
  bool is_ignored(std::int64_t target) const;

  void check_target(const at::Tensor& target, const std::string& who) const;
  void check_output(const at::Tensor& output, const at::Tensor& target) const;
  void check_batch(const data::Example& batch, std::span<const std::int64_t> indices) const;

 private:
  ClassLossWords words_;
  std::int64_t num_classes_, per_sample_;
  std::vector<std::int64_t> ignored_;
};

}  // namespace trireme::objective
