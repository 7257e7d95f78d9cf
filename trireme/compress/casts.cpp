// fp16, bf16: half of the bytes. Each value is rounded to nearest, ties to even.

#include "trireme/base/short_floats.h"
#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

template <class Short>
TRIREME_INLINE void narrow_all(const float* from, Unaligned<std::uint16_t>* to, std::size_t count) {
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < count; ++i) {
    Short value;
    narrow(from[i], value);
    to[i].value = value.bits;
  }
}

template <class Short, bool adds>
TRIREME_INLINE void widen_all(const Unaligned<std::uint16_t>* from, float* to, std::size_t count) {
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < count; ++i) {
    const float value = widen(Short{from[i].value});
    to[i] = adds ? to[i] + value : value;
  }
}

template <class Short>
class CastCodec final : public Codec {
 public:
  std::size_t most_bytes(std::size_t num_values, const Options&) const override {
    return num_values * sizeof(Short);
  }
  std::size_t encode(std::span<const float> values, const Options&,
                     std::span<std::byte> bytes) const override {
    run_vectorised([&]() TRIREME_INLINE_BODY {
      narrow_all<Short>(values.data(), numbers_at<std::uint16_t>(bytes.data()), values.size());
    });
    return values.size() * sizeof(Short);
  }
  bool fits(std::span<const std::byte> bytes, std::size_t num_values) const override {
    return bytes.size() % sizeof(Short) == 0 && bytes.size() / sizeof(Short) == num_values;
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    widen_to<false>(bytes, values);
  }
  void add(std::span<const std::byte> bytes, std::span<float> values) const override {
    widen_to<true>(bytes, values);
  }

 private:
  template <bool adds>
  static void widen_to(std::span<const std::byte> bytes, std::span<float> values) {
    run_vectorised([&]() TRIREME_INLINE_BODY {
      widen_all<Short, adds>(numbers_at<std::uint16_t>(bytes.data()), values.data(), values.size());
    });
  }
};

}  // namespace

const Codec& fp16_codec() {
  static const CastCodec<F16> kCodec;
  return kCodec;
}
const Codec& bf16_codec() {
  static const CastCodec<Bf16> kCodec;
  return kCodec;
}

}  // namespace trireme::compress
