// fp16, bf16: the device rounds to nearest, ties to even, like the host.

#include "trireme/parallel/data/internal/device_codec.h"

namespace trireme::parallel {
namespace {

class DeviceCast final : public DeviceCodec {
 public:
  explicit DeviceCast(at::ScalarType type) : type_(type) {}

  at::Tensor encode(const at::Tensor& values, const compress::Codec::Options& /*how*/,
                    const at::Tensor& bytes) const override {
    numbers_in(bytes, 0, values.numel(), type_).copy_(values);
    return number_on(values.device(), 2 * values.numel());
  }
  Said decode(const at::Tensor& bytes, const at::Tensor& used, std::int64_t num_values) const override {
    return {.values = numbers_in(bytes, 0, num_values, type_).to(at::kFloat),
            .fits = are_used(used, 2 * num_values)};
  }

 private:
  const at::ScalarType type_;
};

}  // namespace

const DeviceCodec& device_fp16_codec() {
  static const DeviceCast kCodec(at::kHalf);
  return kCodec;
}
const DeviceCodec& device_bf16_codec() {
  static const DeviceCast kCodec(at::kBFloat16);
  return kCodec;
}

}  // namespace trireme::parallel
