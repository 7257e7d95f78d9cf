#pragma once
// Compression of values for messages: gradients between ranks and to servers, values back from them
// (docs/compression.md, ADR 0045). A codec is a row of the table in codec.cpp. Decoded values are f32 again
// before any sum: optimizers, logs and replicas do not depend on codecs. The same values, options and bytes
// give the same bits on every machine. Functions without state; any thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::compress {

class Codec {
 public:
  struct Options {
    double fraction = 0.005;  ///< where it names some of the values: how many of them, at most
    std::uint64_t seed = 0;   ///< of random numbers: the same seed, the same bytes
  };

  virtual ~Codec() = default;
  /// The codec is biased: it drops a part of the values. The encoding side keeps that part and adds it to the
  /// next values (error feedback: Karimireddy et al., ICML 2019).
  virtual bool leaves_out() const { return false; }
  /// Sums of decoded values may be encoded, too: a second rounding, for fewer bytes between many ranks. A sum
  /// takes no more bytes than the values of one rank.
  virtual bool encodes_sums() const { return false; }
  /// That encode() may take for so many values.
  virtual std::size_t most_bytes(std::size_t num_values, const Options& options) const = 0;
  /// Into `bytes`, which has room for most_bytes(). Returns how many it took.
  virtual std::size_t encode(std::span<const float> values, const Options& options,
                             std::span<std::byte> bytes) const = 0;
  /// Whether `bytes` are an encoding of so many values; call the other functions only then.
  virtual bool fits(std::span<const std::byte> bytes, std::size_t num_values) const = 0;
  virtual void decode(std::span<const std::byte> bytes, std::span<float> values) const = 0;
  virtual void add(std::span<const std::byte> bytes, std::span<float> values) const = 0;
  /// For codecs that leave out: keeps of `values`, which were encoded, only the part that is not in `bytes`.
  virtual void take_out(std::span<const std::byte> /*bytes*/, std::span<float> /*values*/) const {}
};

/// None for "none": values go as they are. Throws InvalidArgument with the known names.
const Codec* codec(std::string_view name);
/// With "none".
std::vector<std::string> codec_names();

}  // namespace trireme::compress
