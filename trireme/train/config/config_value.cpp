#include "trireme/train/config/config_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/open_folder.h"
#include "trireme/base/printable.h"
#include "trireme/base/text.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/config/internal/removed_settings.h"

namespace trireme::train {
namespace {

std::string number_text(double number) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
  return {buffer, end};
}

std::string quoted(const std::string& words) {
  std::string result = "\"";
  for (const char c : words) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04X", static_cast<unsigned>(c));
      result += escape;
    } else {
      result += c;
    }
  }
  return result + '"';
}

struct TomlText {
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(double value) const {
    std::string result = number_text(value);
    const bool whole = result.find_first_not_of("-0123456789") == std::string::npos;
    return whole ? result + ".0" : result;
  }
  template <class Element>
  std::string operator()(const std::vector<Element>& values) const {
    std::vector<std::string> words;
    for (const Element& value : values) words.push_back((*this)(value));
    return text("[", join(words), "]");
  }
};

bool in_range(const Allowed& allowed, double number) {
  return number >= allowed.least && number <= allowed.most && number < allowed.below &&
         number > allowed.above && std::isfinite(number);
}

bool is_path_component(const std::string& name) {
  return is_file_name(name) && name.find_first_of("\n\t") == std::string::npos &&
         printable_message(name, kWhole) == name;
}

bool is_path_below(const std::string& path) {
  return path.empty() || std::ranges::all_of(split(path, '/'), is_path_component);
}

bool has_form(const std::string& path, PathForm form) {
  if (form == PathForm::kAny) return true;
  return form == PathForm::kBelow ? is_path_below(path) : is_path_component(path);
}

/// True when the value, or each element of it, is allowed.
struct IsAllowed {
  const Allowed& allowed;
  bool operator()(std::int64_t value) const { return in_range(allowed, static_cast<double>(value)); }
  bool operator()(double value) const { return in_range(allowed, value); }
  bool operator()(bool) const { return true; }
  template <class Element>
  bool operator()(const std::vector<Element>& values) const {
    return std::all_of(values.begin(), values.end(), *this);
  }
  bool operator()(const std::string& value) const {
    if (!has_form(value, allowed.path)) return false;
    if (!allowed.names) return true;
    const std::vector<std::string> names = allowed.names();
    return std::find(names.begin(), names.end(), value) != names.end();
  }
};

std::string first_unknown(const Allowed& allowed, const ConfigValue& value) {
  if (const auto* name = std::get_if<std::string>(&value)) return *name;
  const auto& names = std::get<std::vector<std::string>>(value);
  return *std::find_if_not(names.begin(), names.end(), IsAllowed{allowed});
}

}  // namespace

std::string Allowed::describe() const {
  if (path == PathForm::kOneComponent) return "not empty, without '/', printable";
  if (path == PathForm::kBelow) return "a path below the folder, without '..', printable";
  if (names) return join(names());
  std::vector<std::string> bounds;
  if (std::isfinite(above)) bounds.push_back("above " + number_text(above));
  if (std::isfinite(least)) bounds.push_back("at least " + number_text(least));
  if (std::isfinite(most) && most != kMaxInt) bounds.push_back("at most " + number_text(most));
  if (std::isfinite(below)) bounds.push_back("below " + number_text(below));
  return join(bounds);
}

std::string type_name(const ConfigValue& value) {
  static constexpr const char* kNames[] = {
      "whole number",          "number",          "true or false", "text",
      "list of whole numbers", "list of numbers", "list of texts"};
  return kNames[value.index()];
}

std::string to_toml(const ConfigValue& value) { return std::visit(TomlText{}, value); }

void check_type(const ConfigKey& key, const ConfigValue& value) {
  const ConfigValue held = key.get({});
  require(value.index() == held.index(), key.name, ": expected ", type_name(held), ", found ",
          type_name(value), " ", to_toml(value));
}

void check_allowed(const ConfigKey& key, const ConfigValue& value) {
  if (std::visit(IsAllowed{key.allowed}, value)) return;
  if (key.allowed.names) {
    const std::string unknown = first_unknown(key.allowed, value);
    if (const RemovedValue* removed = find_removed_value(key.name, unknown))
      throw InvalidArgument(text(key.name, " = ", to_toml(value), " was removed; ", removed->instead));
    throw InvalidArgument(
        text(key.name, " = ", to_toml(value), " is not known", suggest(unknown, key.allowed.names())));
  }
  const auto* number = std::get_if<double>(&value);
  const bool is_finite = number == nullptr || std::isfinite(*number);
  throw InvalidArgument(
      is_finite ? text(key.name, " = ", to_toml(value), " is out of range: ", key.allowed.describe())
                : text(key.name, " = ", to_toml(value), " is no finite number"));
}

}  // namespace trireme::train
