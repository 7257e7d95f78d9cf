#pragma once
// Codecs that send some of the values store these uncompressed, with their places. Values are in ranges of
// 65536. The chosen values of all ranges are in their order, rising in each. Bytes:
//
//   u32 counts[ceil(n / 65536)] | f32 values[m] | u16 places[m], in their range; m is the sum of the counts
//
// Functions without state; any thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/compress/codec.h"

namespace trireme::compress {

using Places = std::vector<std::uint32_t>;

/// Of the values whose magnitude() reaches `threshold`, rising; room is made for `expected`.
Places places_from(std::span<const float> values, std::uint32_t threshold, std::size_t expected);

/// A codec with these bytes: only the choice of values remains.
class PairsCodec : public Codec {
 public:
  bool leaves_out() const final { return true; }
  std::size_t encode(std::span<const float> values, const Options& options,
                     std::span<std::byte> bytes) const final;
  bool fits(std::span<const std::byte> bytes, std::size_t num_values) const final;
  void decode(std::span<const std::byte> bytes, std::span<float> values) const final;
  void add(std::span<const std::byte> bytes, std::span<float> values) const final;
  void take_out(std::span<const std::byte> bytes, std::span<float> values) const final;

 protected:
  /// Of so many values, of which so many are named.
  static std::size_t bytes_for(std::size_t num_values, std::size_t num_named);

 private:
  /// Of the values to name, rising.
  virtual Places choose(std::span<const float> values, const Options& options) const = 0;
};

}  // namespace trireme::compress
