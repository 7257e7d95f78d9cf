// int8 (compress/int8.cpp): the host's operations in the same order, each rounded once, so that the bytes are
// equal.

#include <ATen/ops/full_like.h>
#include <ATen/ops/nextafter.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cfloat>
#include <limits>

#include "trireme/base/rounding.h"
#include "trireme/parallel/data/internal/device_codec.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kInt8Block = 512, kGreatestStep = 127, kNaNStep = -128;

/// Neither the inverse of a scale nor 127 times the scale is infinite. One nextafter step is enough: the
/// quotient is at most 1 + 2^-24 times too large, and a step is at least 2^-24 of it. The divisor is a
/// tensor: for a scalar a GPU multiplies with the rounded inverse.
at::Tensor scales_of(const at::Tensor& greatest) {
  const at::Tensor scales = greatest.div(at::full_like(greatest, kGreatestStep)).clamp_min(FLT_MIN);
  return at::where(scales.mul(kGreatestStep).gt(FLT_MAX), at::nextafter(scales, at::zeros_like(scales)),
                   scales);
}

class DeviceInt8 final : public DeviceCodec {
 public:
  explicit DeviceInt8(bool by_chance) : by_chance_(by_chance) {}

  at::Tensor encode(const at::Tensor& values, const compress::Codec::Options& how,
                    const at::Tensor& bytes) const override {
    const at::Tensor blocks = rows_of(values, kInt8Block);
    const at::Tensor finite = blocks.isfinite();
    const at::Tensor clean = at::where(finite, blocks, at::zeros_like(blocks));
    const at::Tensor scales = scales_of(clean.abs().amax(1, /*keepdim=*/true));
    const at::Tensor scaled = clean.mul(scales.reciprocal()).add_(128);
    if (by_chance_) {
      draw(scaled, how.seed);
    } else {
      scaled.add_(0.5);
    }
    at::Tensor steps = scaled.to(at::kInt).sub_(128).clamp_(-kGreatestStep, kGreatestStep);
    steps.masked_fill_(finite.logical_not(), kNaNStep);
    numbers_in(bytes, 0, scales.numel(), at::kFloat).copy_(scales.view(-1));
    numbers_in(bytes, 4 * scales.numel(), values.numel(), at::kChar)
        .copy_(steps.view(-1).narrow(0, 0, values.numel()));
    return number_on(values.device(), 4 * scales.numel() + values.numel());
  }
  Said decode(const at::Tensor& bytes, const at::Tensor& used, std::int64_t num_values) const override {
    const std::int64_t rows = divide_up(num_values, kInt8Block);
    const at::Tensor steps = numbers_in(bytes, 4 * rows, num_values, at::kChar);
    const at::Tensor scales = numbers_in(bytes, 0, rows, at::kFloat).unsqueeze(1);
    const at::Tensor values =
        rows_of(steps.to(at::kFloat), kInt8Block).mul(scales).view(-1).narrow(0, 0, num_values);
    return {.values = values.masked_fill(steps.eq(kNaNStep), std::numeric_limits<float>::quiet_NaN()),
            .fits = are_used(used, 4 * rows + num_values)};
  }

 private:
  /// Adds 16 random binary places after the point.
  static void draw(const at::Tensor& scaled, std::uint64_t seed) {
    const at::Tensor seeds = seeds_of_rows(scaled.size(0), seed, scaled.device());
    for (std::int64_t first = 0; first < scaled.size(0); first += kRowsAtOnce) {
      const std::int64_t count = std::min(kRowsAtOnce, scaled.size(0) - first);
      const at::Tensor bits =
          drawn_for_rows(seeds.narrow(0, first, count), kInt8Block).bitwise_right_shift(16);
      scaled.narrow(0, first, count).add_(bits.to(at::kFloat).mul_(0x1p-16));
    }
  }

  const bool by_chance_;
};

}  // namespace

const DeviceCodec& device_int8_codec() {
  static const DeviceInt8 kCodec(/*by_chance=*/true);
  return kCodec;
}
const DeviceCodec& device_nearest_int8_codec() {
  static const DeviceInt8 kCodec(/*by_chance=*/false);
  return kCodec;
}

}  // namespace trireme::parallel
