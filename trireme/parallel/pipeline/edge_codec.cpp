#include "trireme/parallel/pipeline/internal/edge_codec.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <span>

#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/device_codec.h"

namespace trireme::parallel {
namespace {

struct Row {
  const char* name;
  ActivationFormat format;
  at::ScalarType rounded_to = at::kFloat;
  const char* codec = "none";  ///< a name for compress::codec()
};

constexpr std::array kRows = {
    Row{.name = "none", .format = ActivationFormat::kNone},
    Row{.name = "bf16", .format = ActivationFormat::kBf16, .rounded_to = at::kBFloat16},
    Row{.name = "fp16", .format = ActivationFormat::kFp16, .rounded_to = at::kHalf},
    Row{.name = "int8", .format = ActivationFormat::kInt8, .codec = "int8"}};

const Row& row_of(ActivationFormat format) {
  return *std::find_if(kRows.begin(), kRows.end(), [&](const Row& each) { return format == each.format; });
}

std::int64_t numel_of(const TensorSpec& spec) { return c10::multiply_integers(spec.sizes); }

}  // namespace

ActivationFormat activation_format_of(const std::string& name) {
  const auto row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& each) { return name == each.name; });
  require(row != kRows.end(), "there is no format of activations '", name, "'",
          suggest(name, activation_format_names()));
  return row->format;
}

std::vector<std::string> activation_format_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

std::string to_text(const ActivationCompression& compression) {
  return text(row_of(compression.format).name, " from ", compression.min_numel, " elements on, seed ",
              compression.seed);
}

EdgeCodec::EdgeCodec(const ActivationCompression& options, c10::Device device)
    : rounded_to_(row_of(options.format).rounded_to),
      by_block_(compress::codec(row_of(options.format).codec)),
      min_numel_(options.min_numel),
      device_(device) {}

bool EdgeCodec::encodes(const TensorSpec& spec) const {
  if (numel_of(spec) < min_numel_) return false;
  if (by_block_ != nullptr)
    return spec.type == at::kFloat || spec.type == at::kBFloat16 || spec.type == at::kHalf;
  return rounded_to_ != at::kFloat && spec.type == at::kFloat;
}

at::Tensor EdgeCodec::room_for(const TensorSpec& spec) const {
  if (by_block_ == nullptr) return at::empty(spec.sizes, at::device(device_).dtype(rounded_to_));
  const auto values = static_cast<std::size_t>(numel_of(spec));
  return at::empty({static_cast<std::int64_t>(by_block_->most_bytes(values, {}))},
                   at::device(device_).dtype(at::kByte));
}

at::Tensor EdgeCodec::encode(const at::Tensor& tensor, std::uint64_t seed) const {
  const at::NoGradGuard no_grad;
  if (by_block_ == nullptr) return tensor.to(rounded_to_).contiguous();
  const at::Tensor values = tensor.to(device_, at::kFloat).contiguous();
  const auto count = static_cast<std::size_t>(values.numel());
  at::Tensor message = at::empty({static_cast<std::int64_t>(by_block_->most_bytes(count, {}))},
                                 at::TensorOptions(at::kByte).device(device_));
  if (!message.is_cpu()) {
    device_codec(*by_block_).encode(values.view(-1), {.seed = seed}, message);
    return message;
  }
  by_block_->encode({values.const_data_ptr<float>(), count}, {.seed = seed},
                    std::as_writable_bytes(std::span(message.data_ptr<std::uint8_t>(), message.nbytes())));
  return message;
}

at::Tensor EdgeCodec::decode(const at::Tensor& message, const TensorSpec& spec) const {
  const at::NoGradGuard no_grad;
  if (by_block_ == nullptr) return message.to(spec.type);
  if (!message.is_cpu()) {
    const at::Tensor used = number_on(message.device(), message.numel());
    return device_codec(*by_block_)
        .decode(message, used, numel_of(spec))
        .values.view(spec.sizes)
        .to(spec.type);
  }
  at::Tensor values = at::empty(spec.sizes, at::kFloat);
  by_block_->decode(std::as_bytes(std::span(message.const_data_ptr<std::uint8_t>(), message.nbytes())),
                    {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())});
  return values.to(device_, spec.type);
}

}  // namespace trireme::parallel
