#pragma once
// How values are made smaller on their way: gradients between ranks and to servers, values back from them
// (docs/compression.md, ADR 0045). A codec is a row of the table in codec.cpp. What is decoded is f32 again,
// before anything is added up: optimizers, logs and replicas know nothing of codecs. The same values, options
// and bytes give the same bits on every machine. Functions without state; any thread.

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
    std::uint64_t seed = 0;   ///< of what is drawn: the same seed, the same bytes
  };

  virtual ~Codec() = default;
  /// It leaves something out, by more than chance. Who encodes keeps that, adds it to the next values, and so
  /// nothing is lost (error feedback: Karimireddy et al., ICML 2019).
  virtual bool leaves_out() const { return false; }
  /// That encode() may take for so many values.
  virtual std::size_t most_bytes(std::size_t num_values, const Options& options) const = 0;
  /// Into `bytes`, which has room for most_bytes(). Returns how many it took.
  virtual std::size_t encode(std::span<const float> values, const Options& options,
                             std::span<std::byte> bytes) const = 0;
  /// Whether `bytes` say something of so many values; the others may only be called then.
  virtual bool fits(std::span<const std::byte> bytes, std::size_t num_values) const = 0;
  virtual void decode(std::span<const std::byte> bytes, std::span<float> values) const = 0;
  virtual void add(std::span<const std::byte> bytes, std::span<float> values) const = 0;
  /// Where it leaves out: of `values`, which were encoded, only what `bytes` do not say stays.
  virtual void take_out(std::span<const std::byte> /*bytes*/, std::span<float> /*values*/) const {}
};

/// None for "none": values go as they are. Throws InvalidArgument with the known names.
const Codec* codec(std::string_view name);
/// With "none".
std::vector<std::string> codec_names();

}  // namespace trireme::compress
