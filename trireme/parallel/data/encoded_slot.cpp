#include "trireme/parallel/data/internal/encoded_slot.h"

#include <ATen/ops/full_like.h>

#include <cstring>
#include <optional>
#include <span>

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/parallel/data/internal/device_codec.h"
#include "trireme/parallel/data/internal/spans.h"

namespace trireme::parallel {
namespace {

using Head = std::int64_t;
constexpr std::int64_t kHeadBytes = sizeof(Head);
constexpr Head kNotFinite = -1;

/// The slot without its head.
at::Tensor body_of(const at::Tensor& slot) { return slot.narrow(0, kHeadBytes, slot.numel() - kHeadBytes); }
/// On a device: a scalar tensor.
at::Tensor head_of(const at::Tensor& slot) { return numbers_in(slot, 0, 1, at::kLong).select(0, 0); }

/// The encoded bytes; none if the vector is not finite. Throws CommError for invalid bytes.
std::optional<std::span<const std::byte>> said_in(const compress::Codec& codec, const at::Tensor& slot,
                                                  std::int64_t num_values, const std::string& what) {
  const std::span<const std::byte> bytes = bytes_of(slot);
  Head head = 0;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head == kNotFinite) return {};
  const bool is_inside = head >= 0 && head <= slot.numel() - kHeadBytes;
  if (!is_inside || !codec.fits(bytes.subspan(sizeof head, static_cast<std::size_t>(head)),
                                static_cast<std::size_t>(num_values)))
    throw CommError(text("a rank sent ", head, " bytes for '", what,
                         "' that this compression did not make: all ranks need the same version of the "
                         "program"));
  return bytes.subspan(sizeof head, static_cast<std::size_t>(head));
}

DeviceCodec::Said said_on_device(const compress::Codec& codec, const at::Tensor& slot,
                                 std::int64_t num_values) {
  return device_codec(codec).decode(body_of(slot), head_of(slot), num_values);
}

}  // namespace

std::int64_t slot_bytes(const compress::Codec& codec, std::int64_t num_values,
                        const compress::Codec::Options& how) {
  const auto most = static_cast<std::int64_t>(codec.most_bytes(static_cast<std::size_t>(num_values), how));
  return kHeadBytes + round_up(most, kHeadBytes);
}

void write_slot(const compress::Codec& codec, const at::Tensor& values, const compress::Codec::Options& how,
                const Flag& finite, const at::Tensor& slot) {
  if (!slot.is_cpu()) {
    const at::Tensor used = values.numel() == 0 ? number_on(slot.device(), 0)
                                                : device_codec(codec).encode(values, how, body_of(slot));
    head_of(slot).copy_(at::where(finite.on(slot.device()), used, at::full_like(used, kNotFinite)));
    return;
  }
  const std::span<std::byte> bytes = bytes_of(slot);
  Head head = kNotFinite;
  if (finite.is_known(true))
    head = static_cast<Head>(codec.encode(span_of(values), how, bytes.subspan(sizeof head)));
  std::memcpy(bytes.data(), &head, sizeof head);
}

void take_out(const compress::Codec& codec, const at::Tensor& slot, const Flag& finite,
              const at::Tensor& values) {
  if (!codec.leaves_out() || values.numel() == 0) return;
  finite.change(values, [&](const at::Tensor& changed) {
    if (!slot.is_cpu())
      return device_codec(codec).take_out(said_on_device(codec, slot, changed.numel()).values, changed);
    codec.take_out(*said_in(codec, slot, changed.numel(), "this rank's own"), span_of(changed));
  });
}

Flag add_slot(const compress::Codec& codec, const at::Tensor& slot, const at::Tensor& values,
              const std::string& what) {
  if (values.numel() == 0 && !slot.is_cpu()) return true;
  if (!slot.is_cpu()) {
    const DeviceCodec::Said said = said_on_device(codec, slot, values.numel());
    at::Tensor(values).add_(said.values);
    return said.fits;
  }
  const auto said = said_in(codec, slot, values.numel(), what);
  if (said) codec.add(*said, span_of(values));
  return said.has_value();
}

Flag read_slot(const compress::Codec& codec, const at::Tensor& slot, const at::Tensor& values,
               const std::string& what) {
  if (!slot.is_cpu()) {
    at::Tensor(values).zero_();
    return add_slot(codec, slot, values, what);
  }
  const auto said = said_in(codec, slot, values.numel(), what);
  if (said) codec.decode(*said, span_of(values));
  return said.has_value();
}

}  // namespace trireme::parallel
