#pragma once
// CRC-32C (Castagnoli; polynomial 0x1EDC6F41, reflected 0x82F63B78) as RFC 3720 defines it: by the
// processor's instruction of SSE 4.2, or a table. Detects damage, not forgery. Pure; thread-safe.

#include <cstdint>
#include <string_view>

namespace trireme {

/// `before` is the checksum of the bytes that come before these.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

/// The same by one table lookup per byte, for processors without the instruction.
std::uint32_t crc32c_by_table(std::string_view bytes, std::uint32_t before = 0);

}  // namespace trireme
