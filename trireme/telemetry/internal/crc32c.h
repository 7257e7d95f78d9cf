#pragma once
// CRC-32C (Castagnoli; polynomial 0x1EDC6F41, reflected 0x82F63B78) as RFC 3720 defines it, one table lookup
// per byte: enough for the few bytes of a scalar. Pure.

#include <cstdint>
#include <string_view>

namespace trireme::telemetry {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace trireme::telemetry
