#include "trireme/base/printable.h"

#include <array>
#include <cstdint>
#include <cstdio>

#include "trireme/base/text.h"

namespace trireme {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

/// The first character of `text`. If `text` does not begin with UTF-8, one byte that is not valid.
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {.code = lead, .bytes = 1, .valid = true};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {.code = lead};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {.code = lead};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return {.code = lead};
  return {.code = code, .bytes = bytes, .valid = true};
}

/// Control characters, and format characters that change the direction or have no width. Sources: Unicode's
/// general categories Cc, Zl and Zp, and UAX 9.
bool is_harmful(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0xad || code == 0x61c ||
         (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2060 && code <= 0x206f) || code == 0xfeff || (code >= 0xfff9 && code <= 0xfffb) ||
         (code >= 0xe0000 && code <= 0xe007f);
}

std::string escaped(const Character& character) {
  if (character.valid && character.code == '\n') return "\\n";
  if (character.valid && character.code == '\t') return "\\t";
  if (character.valid && character.code == '\r') return "\\r";
  std::array<char, 16> buffer{};
  const char* pattern = !character.valid || character.code < 0x80 ? "\\x%02x"
                        : character.code < 0x10000                ? "\\u%04x"
                                                                  : "\\U%08x";
  std::snprintf(buffer.data(), buffer.size(), pattern, static_cast<unsigned>(character.code));
  return buffer.data();
}

}  // namespace

std::string printable(std::string_view foreign, std::size_t most) {
  std::string result;
  std::string_view left = foreign;
  for (std::size_t count = 0; !left.empty(); ++count) {
    if (count == most) return text(result, "... (", foreign.size(), " bytes)");
    const Character character = first_of(left);
    if (!character.valid || is_harmful(character.code))
      result += escaped(character);
    else if (character.code == '\\')
      result += "\\\\";
    else
      result += left.substr(0, character.bytes);
    left.remove_prefix(character.bytes);
  }
  return result;
}

std::string printable_message(std::string_view message, std::size_t most) {
  std::string result;
  for (std::string_view left = message; !left.empty();) {
    if (result.size() >= most) return text(result, "... (", message.size(), " bytes)");
    const Character character = first_of(left);
    const bool is_space = character.code == '\n' || character.code == '\t';
    if (character.valid && (is_space || !is_harmful(character.code)))
      result += left.substr(0, character.bytes);
    else
      result += escaped(character);
    left.remove_prefix(character.bytes);
  }
  return result;
}

}  // namespace trireme
