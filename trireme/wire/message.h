#pragma once
// A message between two nodes: a kind, a few bytes that the protocol above gives a structure, and any number
// of bytes that it only passes on. Wire does not interpret them. A value.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/wire/buffer.h"

namespace trireme::wire {

/// The order in which a connection sends waiting messages: 0 before 1. A message that waits long is not
/// starved.
using Priority = std::uint8_t;

struct Message {
  std::uint16_t kind = 0;  ///< of the protocol above
  Priority priority = 4;
  std::vector<std::byte> head = {};  ///< its fields; at most kMaxHeadBytes
  Buffer body = {};                  ///< tensors, rows, keys

  static constexpr std::size_t kMaxHeadBytes = 64 << 10;

  std::size_t num_bytes() const { return head.size() + body.size(); }
};

}  // namespace trireme::wire
