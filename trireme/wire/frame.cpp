#include "trireme/wire/frame.h"

#define XXH_STATIC_LINKING_ONLY  // for the size of a state
#include <xxh_x86dispatch.h>

#include <bit>
#include <cstring>

namespace trireme::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are written as they lie in memory");

/// The header as it is sent.
struct Layout {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t priority;
  std::uint16_t kind;
  std::uint32_t checksum;  ///< lower half of the header's hash, with zero in this field
  std::uint32_t head_bytes;
  std::uint64_t message;
  std::int64_t offset;
  std::int64_t total_bytes;
  std::int64_t payload_bytes;
  std::uint64_t payload_hash;
  std::uint64_t reserved;
};
static_assert(sizeof(Layout) == kFrameHeaderBytes && std::has_unique_object_representations_v<Layout>);

std::uint32_t checksum_of(Layout layout) {
  layout.checksum = 0;
  return static_cast<std::uint32_t>(XXH3_64bits(&layout, sizeof layout));
}

FrameFault fault_of(const FrameHeader& header, const FrameLimits& limits) {
  if (header.total_bytes < 0 || header.total_bytes > limits.max_message_bytes) return FrameFault::kTooLong;
  if (header.head_bytes > Message::kMaxHeadBytes || header.head_bytes > header.total_bytes) {
    return FrameFault::kHeadTooLong;
  }
  // No sum in these comparisons can overflow.
  const bool adds_up = header.offset >= 0 && header.payload_bytes >= 0 &&
                       header.offset <= header.total_bytes &&
                       header.payload_bytes <= header.total_bytes - header.offset &&
                       (header.payload_bytes > 0 || header.total_bytes == 0);
  if (!adds_up) return FrameFault::kChunk;
  const bool whole_head =
      header.offset == 0 ? header.head_bytes <= header.payload_bytes : header.head_bytes <= header.offset;
  return whole_head ? FrameFault::kNone : FrameFault::kHeadTooLong;
}

}  // namespace

const char* name_of(FrameFault fault) {
  constexpr std::array<const char*, kNumFrameFaults> kNames = {
      "none",     "magic", "version", "header checksum",     "reserved field",   "head too long",
      "too long", "chunk", "order",   "unfinished messages", "payload checksum", "no memory"};
  return kNames[static_cast<std::size_t>(fault)];
}

FrameHeaderBytes encode(const FrameHeader& header) {
  Layout layout{.magic = kFrameMagic,
                .version = kFrameVersion,
                .priority = header.priority,
                .kind = header.kind,
                .checksum = 0,
                .head_bytes = header.head_bytes,
                .message = header.message,
                .offset = header.offset,
                .total_bytes = header.total_bytes,
                .payload_bytes = header.payload_bytes,
                .payload_hash = header.payload_hash,
                .reserved = 0};
  layout.checksum = checksum_of(layout);
  return std::bit_cast<FrameHeaderBytes>(layout);
}

FrameFault decode(std::span<const std::byte, kFrameHeaderBytes> bytes, const FrameLimits& limits,
                  FrameHeader& header) {
  Layout layout;
  std::memcpy(&layout, bytes.data(), sizeof layout);
  if (layout.magic != kFrameMagic) return FrameFault::kMagic;
  if (layout.version != kFrameVersion) return FrameFault::kVersion;
  if (layout.checksum != checksum_of(layout)) return FrameFault::kHeaderChecksum;
  if (layout.reserved != 0) return FrameFault::kReserved;
  header = {.kind = layout.kind,
            .priority = layout.priority,
            .head_bytes = layout.head_bytes,
            .message = layout.message,
            .offset = layout.offset,
            .total_bytes = layout.total_bytes,
            .payload_bytes = layout.payload_bytes,
            .payload_hash = layout.payload_hash};
  return fault_of(header, limits);
}

std::uint64_t payload_hash(std::span<const std::byte> first, std::span<const std::byte> second) {
  if (second.empty()) return XXH3_64bits(first.data(), first.size());
  if (first.empty()) return XXH3_64bits(second.data(), second.size());
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, first.data(), first.size());
  XXH3_64bits_update(&state, second.data(), second.size());
  return XXH3_64bits_digest(&state);
}

}  // namespace trireme::wire
