#include "trireme/parallel/data/internal/device_codec.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <array>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/compress/nearest.h"

namespace trireme::parallel {
namespace {

struct DeviceRow {
  const char* name;
  const compress::Codec* (*codec)(std::string_view name);
  const DeviceCodec& (*on_device)();
};

constexpr std::array kDeviceRows = {DeviceRow{"fp16", compress::codec, device_fp16_codec},
                                    DeviceRow{"bf16", compress::codec, device_bf16_codec},
                                    DeviceRow{"int8", compress::codec, device_int8_codec},
                                    DeviceRow{"int8", compress::nearest_codec, device_nearest_int8_codec},
                                    DeviceRow{"qsgd", compress::codec, device_qsgd_codec},
                                    DeviceRow{"sign", compress::codec, device_sign_codec},
                                    DeviceRow{"top-k", compress::codec, device_top_k_codec}};

/// The low 32 bits of the product with a 32-bit factor. Intermediate products fit into 63 bits.
at::Tensor times(const at::Tensor& x, std::int64_t factor) {
  constexpr std::int64_t kTop = std::int64_t{1} << 31;
  const at::Tensor low = x.mul(factor & (kTop - 1));
  if ((factor & kTop) == 0) return low.bitwise_and(kLow32);
  return low.add(x.bitwise_and(1), kTop).bitwise_and(kLow32);
}

/// Uniform bits of 32-bit numbers (Wellons, lowbias32), equal to those of the host's codecs.
at::Tensor hashed(at::Tensor x) {
  x = times(x.bitwise_xor(x.bitwise_right_shift(16)), 0x7feb352d);
  x = times(x.bitwise_xor(x.bitwise_right_shift(15)), 0x846ca68b);
  return x.bitwise_xor(x.bitwise_right_shift(16));
}

}  // namespace

void DeviceCodec::take_out(const at::Tensor& /*said*/, const at::Tensor& /*values*/) const {}

const DeviceCodec& device_codec(const compress::Codec& codec) {
  for (const DeviceRow& row : kDeviceRows) {
    if (row.codec(row.name) == &codec) return row.on_device();
  }
  throw InternalError("a codec has no row in the table of device codecs");
}

at::Tensor numbers_in(const at::Tensor& bytes, std::int64_t begin, std::int64_t count, at::ScalarType type) {
  const auto size = static_cast<std::int64_t>(c10::elementSize(type));
  return bytes.narrow(0, begin, count * size).view(type);
}

Flag are_used(const at::Tensor& used, std::int64_t bytes) { return Flag(used.eq(bytes)); }

at::Tensor number_on(c10::Device device, std::int64_t number) {
  return at::full({}, number, at::TensorOptions(at::kLong).device(device));
}

at::Tensor rows_of(const at::Tensor& values, std::int64_t size) {
  const std::int64_t missing = (size - values.numel() % size) % size;
  return (missing == 0 ? values : at::constant_pad_nd(values, {0, missing})).view({-1, size});
}

at::Tensor to_device(const std::vector<std::int64_t>& numbers, c10::Device device) {
  const auto size = static_cast<std::int64_t>(numbers.size());
  const at::Tensor here = at::empty({size}, at::TensorOptions(at::kLong).pinned_memory(true));
  std::copy(numbers.begin(), numbers.end(), here.mutable_data_ptr<std::int64_t>());
  return here.to(device, /*non_blocking=*/true);
}

at::Tensor drawn_for_rows(const at::Tensor& seeds, std::int64_t size) {
  const at::Tensor steps = at::arange(size, seeds.options()).mul(0x9e3779b9);
  return hashed(seeds.unsqueeze(1).add(steps).bitwise_and(kLow32));
}

at::Tensor seeds_of_rows(std::int64_t rows, std::uint64_t seed, c10::Device device) {
  Random random(seed);
  std::vector<std::int64_t> seeds(static_cast<std::size_t>(rows));
  for (std::int64_t& each : seeds) each = static_cast<std::int64_t>(random.bits()) & kLow32;
  return to_device(seeds, device);
}

}  // namespace trireme::parallel
