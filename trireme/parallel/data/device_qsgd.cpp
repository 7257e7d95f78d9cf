// qsgd (compress/stochastic.cpp). The norm of a block is summed in f64 in the device's order. So a value
// whose level is close to the drawn number may get the neighbouring level.

#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "trireme/base/rounding.h"
#include "trireme/parallel/data/internal/device_codec.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kQsgdBlock = 512, kTopLevel = 7, kSignOfCode = 8;

at::Tensor norms_of(const at::Tensor& blocks) {
  const at::Tensor greatest = blocks.abs().amax(1, /*keepdim=*/true);
  const at::Tensor usual = greatest.gt(0).logical_and(greatest.isfinite());
  const at::Tensor divisor = at::where(usual, greatest, at::full_like(greatest, 1));
  const at::Tensor sums = blocks.div(divisor).square().sum(1, /*keepdim=*/true, at::kDouble);
  return at::where(usual, greatest.mul(sums.to(at::kFloat).sqrt()), greatest);
}

class DeviceQsgd final : public DeviceCodec {
 public:
  at::Tensor encode(const at::Tensor& values, const compress::Codec::Options& how,
                    const at::Tensor& bytes) const override {
    const at::Tensor blocks = rows_of(values, kQsgdBlock);
    const at::Tensor norms = norms_of(blocks);
    const at::Tensor finite = norms.isfinite();
    const at::Tensor per_level =
        at::where(norms.gt(0), at::full_like(norms, kTopLevel).div(norms), at::zeros_like(norms));
    const at::Tensor levels = blocks.abs().mul_(per_level);
    draw(levels, how.seed);
    const at::Tensor codes = levels.to(at::kInt).clamp_(0, kTopLevel).add_(blocks.signbit(), kSignOfCode);
    codes.masked_fill_(finite.logical_not(), 0);
    const std::int64_t packed_bytes = divide_up(values.numel(), 2);
    const at::Tensor pairs = codes.view({-1, 2});
    const at::Tensor packed = pairs.select(1, 0).add(pairs.select(1, 1), 2 * kSignOfCode);
    numbers_in(bytes, 0, norms.numel(), at::kFloat)
        .copy_(norms.masked_fill(finite.logical_not(), std::numeric_limits<float>::quiet_NaN()).view(-1));
    bytes.narrow(0, 4 * norms.numel(), packed_bytes).copy_(packed.narrow(0, 0, packed_bytes));
    return number_on(values.device(), 4 * norms.numel() + packed_bytes);
  }
  Said decode(const at::Tensor& bytes, const at::Tensor& used, std::int64_t num_values) const override {
    const std::int64_t rows = divide_up(num_values, kQsgdBlock), packed_bytes = divide_up(num_values, 2);
    const at::Tensor packed = rows_of(bytes.narrow(0, 4 * rows, packed_bytes), kQsgdBlock / 2).unsqueeze(2);
    const at::Tensor scales = numbers_in(bytes, 0, rows, at::kFloat).view({rows, 1, 1});
    const at::Tensor of_level = scales.div(at::full_like(scales, kTopLevel));
    const at::Tensor codes =
        at::cat({packed.bitwise_and(2 * kSignOfCode - 1), packed.bitwise_right_shift(4)}, 2);
    const at::Tensor levels = codes.bitwise_and(kTopLevel).to(at::kFloat).mul_(of_level);
    const at::Tensor values = at::where(codes.ge(kSignOfCode), levels.neg(), levels);
    return {.values = values.view(-1).narrow(0, 0, num_values),
            .fits = are_used(used, 4 * rows + packed_bytes)};
  }

 private:
  /// Adds 24 random binary places after the point.
  static void draw(const at::Tensor& levels, std::uint64_t seed) {
    const at::Tensor seeds = seeds_of_rows(levels.size(0), seed, levels.device());
    for (std::int64_t first = 0; first < levels.size(0); first += kRowsAtOnce) {
      const std::int64_t count = std::min(kRowsAtOnce, levels.size(0) - first);
      const at::Tensor bits =
          drawn_for_rows(seeds.narrow(0, first, count), kQsgdBlock).bitwise_right_shift(8);
      levels.narrow(0, first, count).add_(bits.to(at::kFloat).mul_(0x1p-24));
    }
  }
};

}  // namespace

const DeviceCodec& device_qsgd_codec() {
  static const DeviceQsgd kCodec;
  return kCodec;
}

}  // namespace trireme::parallel
