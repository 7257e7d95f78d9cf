// threshold: the values whose magnitude is at least that, as they are, and where they stand; the others are
// left out. How many these are, the values decide.

#include <algorithm>

#include "trireme/compress/internal/codecs.h"
#include "trireme/compress/internal/pairs.h"

namespace trireme::compress {
namespace {

/// At least 1, as there is no need to name zeros.
std::uint32_t least_magnitude(const Codec::Options& options) {
  return std::max<std::uint32_t>(magnitude(options.threshold), 1);
}

class ThresholdCodec final : public PairsCodec {
 public:
  bool bytes_vary() const override { return true; }
  std::size_t most_bytes(std::size_t num_values, const Options& /*options*/) const override {
    return bytes_for(num_values, num_values);
  }
  std::size_t bytes_for_values(std::span<const float> values, const Options& options) const override {
    const std::uint32_t least = least_magnitude(options);
    std::size_t count = 0;
    run_vectorised([&]() TRIREME_INLINE_BODY {
      constexpr std::size_t kBlock = 65536;  // which 32 bits count in vectors
      for (std::size_t first = 0; first < values.size(); first += kBlock) {
        std::uint32_t of_block = 0;
        const std::size_t end = std::min(first + kBlock, values.size());
        for (std::size_t i = first; i < end; ++i) of_block += magnitude(values[i]) >= least ? 1U : 0U;
        count += of_block;
      }
    });
    return bytes_for(values.size(), count);
  }

 private:
  Places choose(std::span<const float> values, const Options& options) const override {
    return places_from(values, least_magnitude(options), values.size() / 64);
  }
};

}  // namespace

const Codec& threshold_codec() {
  static const ThresholdCodec kCodec;
  return kCodec;
}

}  // namespace trireme::compress
