#pragma once
// A sample, and a batch of them: inputs of a model, and targets. A value whose copies share the tensors.

#include <cstdint>
#include <span>

#include "trireme/batch/fields.h"

namespace trireme::data {

/// One sample, or with a leading batch dim a batch of them. {image, label}, or with names:
/// {{{"query", query}, {"document", document}}, {{"clicked", clicked}}}; either may have no field at all.
struct Example {
  Fields input;   ///< image: f32 (channels, height, width); text: i64 (block)
  Fields target;  ///< input of the objective: a class, i64, no dims; text: i64 (block), the token after each;
                  ///< numbers: f32

  /// Of a batch: how many samples.
  std::int64_t rows() const { return input.empty() ? target.rows() : input.rows(); }
};

/// Throws DataError unless sample number `index` has the same fields as another of its batch.
void check_same_fields(const Fields& sample, const Fields& other, std::int64_t index);

/// Throws DataError, naming the sample, when a number of its inputs is infinite or not a number: one such
/// sample ends the training of the whole model.
void check_finite(const Example& batch, std::span<const std::int64_t> indices);

}  // namespace trireme::data
