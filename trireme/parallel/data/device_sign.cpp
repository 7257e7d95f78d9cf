// sign (compress/sign.cpp). The mean magnitude of a block is summed in f64 in the device's order; signs equal
// those of the host.

#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "trireme/base/rounding.h"
#include "trireme/parallel/data/internal/device_codec.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kSignBlock = 4096, kSignsPerByte = 8;

/// The last block may have fewer values than the others.
at::Tensor means_of(const at::Tensor& blocks, std::int64_t num_values) {
  const at::Tensor sums = blocks.abs().sum(1, /*keepdim=*/false, at::kDouble).to(at::kFloat);
  const at::Tensor counts = at::full_like(sums, kSignBlock);
  if (num_values % kSignBlock > 0) counts.narrow(0, counts.numel() - 1, 1).fill_(num_values % kSignBlock);
  const at::Tensor means = sums.div(counts);
  return at::where(means.isfinite(), means, at::full_like(means, std::numeric_limits<float>::quiet_NaN()));
}

class DeviceSign final : public DeviceCodec {
 public:
  at::Tensor encode(const at::Tensor& values, const compress::Codec::Options& /*how*/,
                    const at::Tensor& bytes) const override {
    const at::Tensor means = means_of(rows_of(values, kSignBlock), values.numel());
    numbers_in(bytes, 0, means.numel(), at::kFloat).copy_(means);
    const at::Tensor signs = rows_of(values.signbit().to(at::kByte), kSignsPerByte);
    const at::Tensor packed = signs.select(1, 0).clone();
    for (std::int64_t bit = 1; bit < kSignsPerByte; ++bit) packed.add_(signs.select(1, bit), 1 << bit);
    bytes.narrow(0, 4 * means.numel(), packed.numel()).copy_(packed);
    return number_on(values.device(), 4 * means.numel() + packed.numel());
  }
  Said decode(const at::Tensor& bytes, const at::Tensor& used, std::int64_t num_values) const override {
    const std::int64_t rows = divide_up(num_values, kSignBlock),
                       packed_bytes = divide_up(num_values, kSignsPerByte);
    const at::Tensor packed = rows_of(bytes.narrow(0, 4 * rows, packed_bytes), kSignBlock / kSignsPerByte);
    const at::Tensor places = at::arange(kSignsPerByte, packed.options());
    const at::Tensor is_negative =
        packed.unsqueeze(2).bitwise_right_shift(places).bitwise_and(1).to(at::kBool).view({rows, kSignBlock});
    const at::Tensor means = numbers_in(bytes, 0, rows, at::kFloat).unsqueeze(1);
    const at::Tensor values = at::where(is_negative, means.neg(), means);
    return {.values = values.view(-1).narrow(0, 0, num_values),
            .fits = are_used(used, 4 * rows + packed_bytes)};
  }
  /// A block with non-finite values was sent entirely: no error feedback.
  void take_out(const at::Tensor& said, const at::Tensor& values) const override {
    at::Tensor(values).copy_(at::where(said.isfinite(), values.sub(said), at::zeros_like(values)));
  }
};

}  // namespace

const DeviceCodec& device_sign_codec() {
  static const DeviceSign kCodec;
  return kCodec;
}

}  // namespace trireme::parallel
