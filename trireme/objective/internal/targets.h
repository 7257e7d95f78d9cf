#pragma once
// Common checks of targets and outputs.

#include <span>
#include <string>

#include "trireme/data/dataset.h"

namespace trireme::objective {

/// "Long of shape [64]"
std::string kind_of(const at::Tensor& tensor);

/// "the batch that begins with sample 7 of the data set has "
std::string batch_in_words(std::span<const std::int64_t> indices);

/// Throws DataError when a field of the targets has not one row for each sample.
void check_rows(const data::Example& batch, std::span<const std::int64_t> indices);

/// Bounds of numbers, both included; the text for values outside is "not a finite number" or "outside 0 to
/// 1".
struct NumberRange {
  double least, most;
  const char* otherwise;
};

/// Throws DataError, naming the sample: no f32, or a number out of the range.
void check_numbers(const data::Example& batch, std::span<const std::int64_t> indices,
                   const NumberRange& range);

/// Throws InvalidArgument unless both hold the same numbers: of one shape, or one of them a flat row for each
/// sample.
void check_alike(const at::Tensor& output, const at::Tensor& target);

/// The output as f32, in the shape of the target.
at::Tensor as_target(const at::Tensor& output, const at::Tensor& target);

}  // namespace trireme::objective
