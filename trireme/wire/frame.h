#pragma once
// The format of connections: frames of a header of 64 bytes and a payload. A message is its head followed by
// its body, cut into one frame or several; docs/wire.md has the table. All numbers are little-endian. A
// header is checked whole before anything is allocated for it, and no bytes of a peer make it throw or abort.
// The hash is XXH3 of 64 bits (xxhash, doc/xxhash_spec.md): it detects damage and lost order, and is no
// protection against attacks. Pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/wire/message.h"

namespace trireme::wire {

inline constexpr std::size_t kFrameHeaderBytes = 64;
inline constexpr std::uint32_t kFrameMagic = 0x46575254;  ///< "TRWF"
/// The version that this code writes, and the only one that it reads.
inline constexpr std::uint8_t kFrameVersion = 1;

/// Limits of a receiver; both sides exchange them at connection, and a sender keeps to them.
struct FrameLimits {
  std::int64_t max_message_bytes = std::int64_t{1} << 30;  ///< head and body
  /// Of all messages of one connection that have begun and are not whole: at least max_message_bytes.
  std::int64_t max_unfinished_bytes = std::int64_t{2} << 30;
};

/// The header of a frame; decode() finds invalid values.
struct FrameHeader {
  std::uint16_t kind = 0;  ///< of the message; so all but the last two
  Priority priority = 4;
  std::uint32_t head_bytes = 0;    ///< the first of the message's bytes; all of them are in its first frame
  std::uint64_t message = 0;       ///< number of the message, by its sender: from 1, growing
  std::int64_t offset = 0;         ///< of this frame's payload in the message
  std::int64_t total_bytes = 0;    ///< of the message
  std::int64_t payload_bytes = 0;  ///< of this frame
  std::uint64_t payload_hash = 0;
};

/// Faults of bytes that should be a frame.
enum class FrameFault : std::uint8_t {
  kNone,
  kMagic,            ///< no frame begins here
  kVersion,          ///< of another version of this protocol
  kHeaderChecksum,   ///< the header is damaged
  kReserved,         ///< a field that this version leaves at zero is not
  kHeadTooLong,      ///< more than Message::kMaxHeadBytes, or than the message, or not all in the first frame
  kTooLong,          ///< the message is longer than the limit, or a length is below zero
  kChunk,            ///< offset, length and total do not add up
  kOrder,            ///< a part that does not continue its message, or a message out of turn
  kUnfinished,       ///< more has begun than the limit for messages that are not whole
  kPayloadChecksum,  ///< the payload is damaged
  kNoMemory,         ///< there is none for a message within the limits
};
/// How many faults there are, for counters of each.
inline constexpr int kNumFrameFaults = 12;
/// "header checksum", as counters and messages name it.
const char* name_of(FrameFault fault);

/// A header as it travels.
using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;
/// The header with its checksum, little-endian.
FrameHeaderBytes encode(const FrameHeader& header);
/// Everything that a header alone can be wrong in; `header` means something only with kNone.
FrameFault decode(std::span<const std::byte, kFrameHeaderBytes> bytes, const FrameLimits& limits,
                  FrameHeader& header);

/// XXH3 of bytes in two places.
std::uint64_t payload_hash(std::span<const std::byte> first, std::span<const std::byte> second);

}  // namespace trireme::wire
