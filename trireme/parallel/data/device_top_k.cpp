// top-k (compress/top_k.cpp) without a device synchronization: the device decides how many values are sent,
// and which. Values are ordered by magnitude; of equal ones the earlier is first. The result equals the
// host's. All values that reach the sample's threshold are sent, if they are at least half of the limit and
// not above it. Otherwise as many as the limit allows are sent, without zeros.

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/base/random.h"
#include "trireme/base/rounding.h"
#include "trireme/parallel/data/internal/device_codec.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kTopKSample = 4096, kPairRange = 65536, kPairBytes = 6;

/// Integers in the order of magnitudes: i64 with 31 bits.
at::Tensor magnitudes_of(const at::Tensor& values) {
  return values.view(at::kInt).bitwise_and(0x7fffffff).to(at::kLong);
}

std::int64_t max_named(std::int64_t num_values, double fraction) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(num_values) * fraction));
}

/// The threshold that `count` of `magnitudes` reach; at least 1.
at::Tensor threshold_for(const at::Tensor& magnitudes, std::int64_t count) {
  const std::int64_t place = std::clamp<std::int64_t>(count, 1, magnitudes.numel());
  return std::get<0>(magnitudes.topk(place)).narrow(0, place - 1, 1).clamp_min(1);
}

/// The same sample as on the host.
at::Tensor sample_of(const at::Tensor& magnitudes, std::uint64_t seed) {
  Random random(seed);
  const std::int64_t stride = magnitudes.numel() / kTopKSample;
  std::vector<std::int64_t> places(kTopKSample);
  for (std::int64_t i = 0; i < kTopKSample; ++i)
    places[static_cast<std::size_t>(i)] =
        i * stride + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(stride)));
  return magnitudes.index_select(0, to_device(places, magnitudes.device()));
}

/// Number of values to send: i64, one element.
at::Tensor num_named(const at::Tensor& magnitudes, std::int64_t most, std::uint64_t seed) {
  const std::int64_t num_values = magnitudes.numel();
  at::Tensor exact = magnitudes.gt(0).sum().clamp_max(most).view({1});
  if (num_values <= kTopKSample) return exact;
  const std::int64_t of_sample = (most * kTopKSample + most * kTopKSample / 2) / num_values;
  const at::Tensor reached =
      magnitudes.ge(threshold_for(sample_of(magnitudes, seed), of_sample)).sum().view({1});
  return at::where(reached.ge((most + 1) / 2).logical_and(reached.le(most)), reached, exact);
}

class DeviceTopK final : public DeviceCodec {
 public:
  at::Tensor encode(const at::Tensor& values, const compress::Codec::Options& how,
                    const at::Tensor& bytes) const override {
    const std::int64_t num_values = values.numel(), most = max_named(num_values, how.fraction),
                       ranges = divide_up(num_values, kPairRange);
    const at::Tensor magnitudes = magnitudes_of(values);
    const at::Tensor named = num_named(magnitudes, most, how.seed);
    // All keys differ, so that every device chooses the same values.
    const at::Tensor keys = magnitudes.bitwise_left_shift(32).add_(
        at::arange(num_values, magnitudes.options()).neg_().add_(kLow32));
    const at::Tensor order = at::arange(most, magnitudes.options());
    const at::Tensor greatest = std::get<0>(keys.topk(most)).bitwise_and(kLow32).neg_().add_(kLow32);
    const at::Tensor places =
        std::get<0>(at::where(order.lt(named), greatest, at::full_like(greatest, num_values)).sort());
    const at::Tensor ends =
        at::arange(1, ranges + 1, magnitudes.options()).mul_(kPairRange).clamp_max_(num_values);
    at::Tensor counts = at::searchsorted(places, ends);
    counts = counts.sub(at::constant_pad_nd(counts.narrow(0, 0, ranges - 1), {1, 0}));
    numbers_in(bytes, 0, ranges, at::kInt).copy_(counts);
    numbers_in(bytes, 4 * ranges, most, at::kFloat)
        .copy_(values.index_select(0, places.clamp_max(num_values - 1)));
    // The offset of the places is a value on the device. Bytes after the last place are ignored.
    const at::Tensor halves = numbers_in(bytes, 0, 2 * ranges + 3 * most, at::kShort);
    halves.index_copy_(0, order.add(named, 2).add_(2 * ranges),
                       places.bitwise_and(kPairRange - 1).to(at::kShort));
    return named.mul(kPairBytes).add_(4 * ranges).squeeze();
  }

  Said decode(const at::Tensor& bytes, const at::Tensor& used, std::int64_t num_values) const override {
    const std::int64_t ranges = divide_up(num_values, kPairRange),
                       most = std::min(num_values, (bytes.numel() - 4 * ranges) / kPairBytes);
    const at::Tensor of_pairs = used.sub(4 * ranges);
    const at::Tensor named = of_pairs.div(kPairBytes, "floor").clamp(0, most);
    const at::Tensor counts = numbers_in(bytes, 0, ranges, at::kInt).to(at::kLong);
    const at::Tensor order = at::arange(most, counts.options());
    const at::Tensor range = at::searchsorted(counts.cumsum(0), order, /*out_int32=*/false, /*right=*/true);
    const at::Tensor halves = numbers_in(bytes, 0, 2 * ranges + 3 * most, at::kShort);
    const at::Tensor offsets = halves.index_select(0, order.add(named, 2).add_(2 * ranges))
                                   .to(at::kLong)
                                   .bitwise_and(kPairRange - 1);
    const at::Tensor places = range.clamp_max(ranges - 1).mul(kPairRange).add_(offsets);
    const at::Tensor counted = order.lt(named), outside = places.ge(num_values).logical_and(counted);
    // Ignored values are written after the last value.
    const at::Tensor to =
        at::where(counted.logical_and(outside.logical_not()), places, at::full_like(places, num_values));
    const at::Tensor said = at::zeros({num_values + 1}, bytes.options().dtype(at::kFloat))
                                .scatter_(0, to, numbers_in(bytes, 4 * ranges, most, at::kFloat));
    const at::Tensor rises = places.narrow(0, 1, most - 1).gt(places.narrow(0, 0, most - 1));
    const at::Tensor fits =
        of_pairs.eq(named.mul(kPairBytes))
            .logical_and(counts.sum().eq(named))
            .logical_and(counts.ge(0).all())
            .logical_and(outside.any().logical_not())
            .logical_and(rises.logical_or(counted.narrow(0, 1, most - 1).logical_not()).all());
    return {.values = said.narrow(0, 0, num_values), .fits = Flag(fits)};
  }
  /// Sent values are not 0.
  void take_out(const at::Tensor& said, const at::Tensor& values) const override {
    at::Tensor(values).masked_fill_(said.ne(0), 0);
  }
};

}  // namespace

const DeviceCodec& device_top_k_codec() {
  static const DeviceTopK kCodec;
  return kCodec;
}

}  // namespace trireme::parallel
