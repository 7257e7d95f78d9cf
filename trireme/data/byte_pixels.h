#pragma once
// Bytes to normalised numbers, (x / 255 - mean) / std, with the same bits wherever they come from. A value.

#include <cstdint>
#include <span>

namespace trireme::data {

/// Mean and standard deviation of pixels between 0 and 1: (pixel - mean) / deviation.
struct Normalisation {
  double mean = 0;
  double std = 1;  ///< positive
};

class BytePixels {
 public:
  /// Throws InvalidArgument for a deviation that is not positive.
  explicit BytePixels(const Normalisation& normalisation);
  /// `target` has room for all.
  void convert(std::span<const std::uint8_t> bytes, float* target) const;

 private:
  float scale_, shift_;
};

}  // namespace trireme::data
