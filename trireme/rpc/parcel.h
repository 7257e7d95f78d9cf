#pragma once
// Arguments or results on their way: fields, large bytes next to them, remote references among them, and what
// the layer above adds. A wire::Message has room for one after a head of its own. Values.

#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "trireme/rpc/ids.h"
#include "trireme/wire/buffer.h"
#include "trireme/wire/message.h"

namespace trireme::rpc {

/// A reference that is handed over: who tells the owner of it.
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

/// What pack() has made: `head` and the parcel. Empty when it was not pack() that made it.
struct Unpacked {
  std::span<const std::byte> head;  ///< within the message
  Parcel parcel = {};
};
/// What pack() made; empty for bytes that it does not make.
std::optional<Unpacked> unpack(const wire::Message& message);

}  // namespace trireme::rpc
