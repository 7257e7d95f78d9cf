#include "trireme/etcd/internal/base64.h"

#include <array>
#include <cstdint>

namespace trireme::etcd {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kNone = 0xff;

constexpr std::array<std::uint8_t, 256> values_of_digits() {
  std::array<std::uint8_t, 256> result{};
  result.fill(kNone);
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    result[static_cast<std::uint8_t>(kDigits[i])] = static_cast<std::uint8_t>(i);
  return result;
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string result;
  result.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = 0; j < 3; ++j)
      three = three << 8 | (i + j < bytes.size() ? static_cast<std::uint8_t>(bytes[i + j]) : 0u);
    for (int shift = 18; shift >= 0; shift -= 6) result += kDigits[three >> shift & 63];
  }
  for (std::size_t i = 0; i < (3 - bytes.size() % 3) % 3; ++i) result[result.size() - 1 - i] = '=';
  return result;
}

std::optional<std::string> from_base64(std::string_view text) {
  constexpr auto kValues = values_of_digits();
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string result;
  result.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t three = 0;
    for (std::size_t j = i; j < i + 4; ++j) {
      const bool is_padding = j >= text.size() - padding;
      const std::uint8_t value = is_padding ? 0 : kValues[static_cast<std::uint8_t>(text[j])];
      if (value == kNone) return std::nullopt;
      three = three << 6 | value;
    }
    for (int shift = 16; shift >= 0; shift -= 8) result += static_cast<char>(three >> shift & 255);
  }
  result.resize(result.size() - padding);
  return result;
}

}  // namespace trireme::etcd
