#pragma once
// How gradients and values are made smaller on their way between a worker and a server (ADR 0045). A codec
// is a row of the table in codec.cpp. What is decoded is f32 again, before anything is added up: optimizers,
// logs and replicas know nothing of codecs. Functions without state; any thread.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "trireme/wire/buffer.h"

namespace trireme::ps {

/// Of a table, for both ways. Assignments, states of optimizers and checkpoints are never encoded.
struct CompressionSpec {
  std::string push = "none";  ///< what workers push
  std::string pull = "none";  ///< what they pull
  double fraction = 0.005;    ///< top-k: of the elements of a chunk, that a push names

  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.push, self.pull, self.fraction);
  }
};

class Codec {
 public:
  struct Options {
    double fraction = 0.005;
    std::uint64_t seed = 0;  ///< of what is drawn: the same seed, the same bytes
  };

  virtual ~Codec() = default;
  /// It leaves values out. Who encodes keeps them, adds them to the next ones, and so nothing is lost.
  virtual bool leaves_out() const { return false; }
  virtual wire::Buffer encode(std::span<const float> values, const Options& options) const = 0;
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

}  // namespace trireme::ps
