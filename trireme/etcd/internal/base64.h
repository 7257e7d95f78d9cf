#pragma once
// Bytes as text (RFC 4648, section 4), as JSON carries keys and values. Pure functions.

#include <optional>
#include <string>
#include <string_view>

namespace trireme::etcd {

std::string to_base64(std::string_view bytes);
/// Empty for text that is not base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace trireme::etcd
