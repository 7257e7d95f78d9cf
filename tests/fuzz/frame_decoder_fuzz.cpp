// libFuzzer's entry to the decoder of frames. Any input ends with messages or a named fault, and the decoder
// stays within its memory limits. The result does not depend on how the bytes are split into reads.
// tools/fuzz.sh builds and runs this target. The last byte chooses the split. If its bit 7 is set, headers
// get correct checksums, so that the code after the check is fuzzed, too.

#define XXH_STATIC_LINKING_ONLY
#include <xxh_x86dispatch.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "trireme/wire/frame_decoder.h"

namespace {

using namespace trireme::wire;

constexpr FrameLimits kLimits{.max_message_bytes = 4096, .max_unfinished_bytes = 8192};

/// Walks from header to header as a decoder would, and corrects each checksum.
void repair(std::vector<std::byte>& bytes) {
  for (std::size_t at = 0; at + kFrameHeaderBytes <= bytes.size();) {
    std::byte* header = bytes.data() + at;
    std::memset(header + 8, 0, 4);
    const auto checksum = static_cast<std::uint32_t>(XXH3_64bits(header, kFrameHeaderBytes));
    std::memcpy(header + 8, &checksum, 4);
    std::int64_t payload_bytes = 0;
    std::memcpy(&payload_bytes, header + 40, 8);
    if (payload_bytes < 0 || payload_bytes > kLimits.max_message_bytes) return;
    at += kFrameHeaderBytes + static_cast<std::size_t>(payload_bytes);
  }
}

struct Result {
  std::size_t messages = 0, bytes = 0;
  FrameFault fault = FrameFault::kNone;
  bool operator==(const Result&) const = default;
};

Result decode_in_steps(const std::vector<std::byte>& bytes, std::size_t step) {
  FrameDecoder decoder(kLimits, BufferPool::create(0));
  Result result;
  std::span<const std::byte> left(bytes);
  while (!left.empty() && decoder.fault() == FrameFault::kNone) {
    auto part = left.first(std::min(step, left.size()));
    left = left.subspan(part.size());
    while (!part.empty() && decoder.fault() == FrameFault::kNone) {
      if (const auto message = decoder.take(part)) {
        ++result.messages;
        result.bytes += message->num_bytes();
      }
      if (decoder.unfinished_bytes() > kLimits.max_unfinished_bytes) std::abort();
    }
  }
  result.fault = decoder.fault();
  return result;
}

}  // namespace

extern "C" int fuzz_frame_decoder(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t how = data[size - 1];
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin, begin + size - 1);
  if ((how & 0x80) != 0) repair(bytes);
  if (decode_in_steps(bytes, 1 + (how & 0x7f)) != decode_in_steps(bytes, bytes.size() + 1)) std::abort();
  return 0;
}
