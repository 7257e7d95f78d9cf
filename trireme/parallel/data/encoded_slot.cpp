#include "trireme/parallel/data/internal/encoded_slot.h"

#include <cstring>
#include <optional>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

using Head = std::uint64_t;
constexpr Head kNotFinite = ~Head{0};

std::size_t with_head(std::size_t bytes) {
  return sizeof(Head) + (bytes + sizeof(Head) - 1) / sizeof(Head) * sizeof(Head);
}

/// None: its vector is not finite. Throws CommError.
std::optional<std::span<const std::byte>> said_in(const compress::Codec& codec,
                                                  std::span<const std::byte> slot, std::size_t num_values,
                                                  const std::string& what) {
  Head head = 0;
  std::memcpy(&head, slot.data(), sizeof head);
  if (head == kNotFinite) return {};
  const bool is_inside = head <= slot.size() - sizeof head;
  if (!is_inside || !codec.fits(slot.subspan(sizeof head, head), num_values))
    throw CommError(text("a rank sent ", head, " bytes for '", what,
                         "' that this compression did not make: all ranks need the same version of the "
                         "program"));
  return slot.subspan(sizeof head, head);
}

}  // namespace

std::span<std::byte> bytes_of(const at::Tensor& message) {
  return std::as_writable_bytes(std::span(message.data_ptr<std::uint8_t>(), message.nbytes()));
}

std::size_t slot_bytes(const compress::Codec& codec, std::size_t num_values,
                       const compress::Codec::Options& how) {
  return with_head(codec.most_bytes(num_values, how));
}

std::span<const std::byte> write_slot(const compress::Codec& codec, std::span<const float> values,
                                      const compress::Codec::Options& how, std::span<std::byte> slot) {
  const std::span<std::byte> room = slot.subspan(sizeof(Head));
  const Head head = codec.encode(values, how, room);
  std::memcpy(slot.data(), &head, sizeof head);
  return room.first(head);
}

void write_not_finite(std::span<std::byte> slot) { std::memcpy(slot.data(), &kNotFinite, sizeof kNotFinite); }

bool add_slot(const compress::Codec& codec, std::span<const std::byte> slot, std::span<float> values,
              const std::string& what) {
  const auto said = said_in(codec, slot, values.size(), what);
  if (said) codec.add(*said, values);
  return said.has_value();
}

bool read_slot(const compress::Codec& codec, std::span<const std::byte> slot, std::span<float> values,
               const std::string& what) {
  const auto said = said_in(codec, slot, values.size(), what);
  if (said) codec.decode(*said, values);
  return said.has_value();
}

}  // namespace trireme::parallel
