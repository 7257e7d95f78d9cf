#pragma once
// Arguments or results in transfer: fields, large bytes next to them, remote references among them, and the
// additions of the layer above. A wire::Message has room for one after a head of its own. Values.

#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "trireme/rpc/ids.h"
#include "trireme/wire/buffer.h"
#include "trireme/wire/message.h"

namespace trireme::rpc {

/// A reference that is passed on, and the worker that notifies the owner.
struct RefPass {
  RefId id;
  WorkerId introducer = kNobody;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.id, self.introducer);
  }
};

struct Parcel {
  std::vector<std::byte> fields = {};
  std::vector<wire::Buffer> attachments = {};
  std::vector<RefPass> references = {};
  std::vector<std::byte> annex = {};

  std::size_t num_bytes() const;
};

/// The parcel after `head`. One attachment is not copied, several are put one after the other.
wire::Message pack(std::uint16_t kind, std::vector<std::byte> head, const Parcel& parcel);

/// The inverse of pack(): `head` and the parcel. Empty for other messages.
struct Unpacked {
  std::span<const std::byte> head;  ///< within the message
  Parcel parcel = {};
};
/// The content that pack() made; empty for bytes of another origin.
std::optional<Unpacked> unpack(const wire::Message& message);

}  // namespace trireme::rpc
