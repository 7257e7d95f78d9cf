#include "trireme/base/toml_text.h"

#include <array>
#include <charconv>
#include <sstream>
#include <vector>

#include "trireme/base/text.h"

namespace trireme {
namespace {

std::string number_text(double number) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  std::string result(digits.data(), end);
  const bool looks_whole = result.find_first_not_of("-0123456789") == std::string::npos;
  return looks_whole ? result + ".0" : result;
}

template <class Value>
std::string formatted(const Value& value) {
  std::ostringstream out;
  out << toml::toml_formatter(value);
  return out.str();
}

}  // namespace

std::string toml_text(const std::string& words) { return formatted(toml::value<std::string>(words)); }

std::string toml_text(const toml::node& node) {
  if (const auto* number = node.as_floating_point()) return number_text(number->get());
  std::vector<std::string> words;
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& each : *list) words.push_back(toml_text(each));
    return text("[", join(words), "]");
  }
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, value] : *table)
      words.push_back(text(toml_text(std::string(key.str())), " = ", toml_text(value)));
    return text("{ ", join(words), " }");
  }
  std::string result;
  node.visit([&](const auto& held) {
    if constexpr (toml::is_value<decltype(held)>) result = formatted(held);
  });
  return result;
}

}  // namespace trireme
