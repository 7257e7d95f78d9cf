#include <algorithm>
#include <limits>
#include <sstream>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/toml.h"
#include "trireme/base/toml_nesting.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/config/internal/removed_settings.h"

namespace trireme::train {
namespace {

using Table = std::vector<ConfigKey>;

std::vector<std::string> known_tables(const Table& keys) {
  std::vector<std::string> tables;
  for (const ConfigKey& row : keys) {
    std::string table = row.name.substr(0, row.name.find('.'));
    if (tables.empty() || tables.back() != table) tables.push_back(std::move(table));
  }
  return tables;
}

/// The nearest known key, else the keys of the table.
std::string suggest_key(const Table& table, const std::string& name) {
  std::vector<std::string> names;
  for (const ConfigKey& row : table) names.push_back(row.name);
  if (const std::string near = nearest(name, names); !near.empty())
    return text(" (did you mean '", near, "'?)");
  const std::string prefix = name.substr(0, name.find('.') + 1);
  std::vector<std::string> keys;
  for (const std::string& known : names) {
    if (known.starts_with(prefix)) keys.push_back(known.substr(prefix.size()));
  }
  return keys.empty() ? suggest(name, known_tables(table))
                      : text(" (known in [", prefix.substr(0, prefix.size() - 1), "]: ", join(keys), ")");
}

std::string describe_found(const toml::node& node) {
  static constexpr const char* kTypes[] = {"nothing", "a table",       "a list", "text",   "whole number",
                                           "number",  "true or false", "a date", "a time", "a date and time"};
  std::ostringstream value;
  if (node.is_value())
    node.visit([&](const auto& held) {
      if constexpr (toml::is_value<decltype(held)>) value << ' ' << held;
    });
  return kTypes[static_cast<std::size_t>(node.type())] + value.str();
}

/// Converts the node to the type of the key; nothing if the node has another type.
struct Convert {
  const toml::node& node;
  std::optional<ConfigValue> operator()(std::int64_t) const { return wrap(node.value_exact<std::int64_t>()); }
  std::optional<ConfigValue> operator()(bool) const { return wrap(node.value_exact<bool>()); }
  std::optional<ConfigValue> operator()(const std::string&) const {
    return wrap(node.value_exact<std::string>());
  }
  std::optional<ConfigValue> operator()(double) const {
    return node.is_number() ? wrap(node.value<double>()) : std::nullopt;
  }
  template <class Element>
  std::optional<ConfigValue> operator()(const std::vector<Element>&) const {
    const toml::array* list = node.as_array();
    if (list == nullptr) return std::nullopt;
    std::vector<Element> values;
    for (const toml::node& element : *list) {
      // An integer is accepted as a number, as for a single value.
      auto value = std::is_same_v<Element, double> && element.is_number() ? element.value<Element>()
                                                                          : element.value_exact<Element>();
      if (!value) return std::nullopt;
      values.push_back(*std::move(value));
    }
    return ConfigValue(std::move(values));
  }

 private:
  template <class Value>
  static std::optional<ConfigValue> wrap(std::optional<Value> value) {
    if (!value) return std::nullopt;
    return ConfigValue(*std::move(value));
  }
};

void apply(RunConfig& config, const ConfigKey& key, const toml::node& node) {
  const ConfigValue current = key.get(config);
  const std::optional<ConfigValue> value = std::visit(Convert{node}, current);
  require(value.has_value(), key.name, ": expected ", type_name(current), ", found ", describe_found(node));
  check_allowed(key, *value);
  key.set(config, *value);
  config.named->insert(key.name);
}

/// Whether the key was removed, and has the value that had no effect. Throws InvalidArgument: another value.
bool is_without_effect(const std::string& name, const toml::node& node) {
  const RemovedKey* removed = find_removed_key(name);
  if (removed == nullptr) return false;
  require(node.is_number() && node.value<double>() == removed->without_effect, name,
          " was removed, and is accepted with the value ", removed->without_effect, " alone; found ",
          describe_found(node), "; ", removed->instead);
  return true;
}

/// Runs `body`, and prefixes its InvalidArgument with the place.
template <class Body>
void at_place(const std::string& place, const Body& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(text(place, ": ", error.what()));
  }
}

void apply_table(RunConfig& config, const std::string& file, const std::string& table,
                 const toml::table& keys) {
  for (const auto& [key, node] : keys) {
    const std::string name = text(table, ".", key.str());
    at_place(text(file, ":", key.source().begin.line), [&, &value = node] {
      if (!is_without_effect(name, value)) apply(config, find_key(config_key_table(config), name), value);
    });
  }
}

void apply_document(RunConfig& config, const std::string& content, const std::string& file) {
  if (const auto line = line_of_deep_key(content))
    throw InvalidArgument(text(file, ":", *line, ": a key of more than ", kMaxKeyParts, " parts"));
  toml::table root;
  try {
    root = toml::parse(content, file);
  } catch (const toml::parse_error& error) {
    throw InvalidArgument(text(file, ":", error.source().begin.line, ": ", error.description()));
  }
  const std::vector<std::string> tables = known_tables(config_key_table(config));
  for (const auto& [key, node] : root) {
    const std::string name(key.str());
    const std::string place = text(file, ":", key.source().begin.line);
    if (std::find(tables.begin(), tables.end(), name) == tables.end()) {
      throw InvalidArgument(text(place, ": unknown table [", name, "]", suggest(name, tables)));
    }
    const toml::table* keys = node.as_table();
    if (keys == nullptr) {
      throw InvalidArgument(text(place, ": '", name, "' is a table: write [", name, "] and its keys below"));
    }
    apply_table(config, file, name, *keys);
  }
}

/// A document with the one key `v` that holds the word as text.
toml::table text_document(const std::string& word) {
  toml::table document;
  document.insert("v", word);
  return document;
}

/// An integer that is too large for the parser.
bool is_beyond_numbers(std::string_view written) {
  if (written.starts_with('-') || written.starts_with('+')) written.remove_prefix(1);
  return written.size() > 18 && written.find_first_not_of("0123456789") == std::string_view::npos;
}

/// A document with the one key `v` and the TOML value as written; a bare word is text.
toml::table value_document(const std::string& written) {
  if (line_of_deep_key(written)) return text_document(written);
  try {
    toml::table document = toml::parse(text("v = ", written));
    return document.size() == 1 ? document : text_document(written);
  } catch (const toml::parse_error&) {
    return text_document(written);
  }
}

void apply_override(RunConfig& config, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  require(equals != std::string::npos, "expected table.key=value");
  const std::string name(trim(std::string_view(assignment).substr(0, equals)));
  const std::string written(trim(std::string_view(assignment).substr(equals + 1)));
  toml::table document = value_document(written);
  if (is_without_effect(name, *document.get("v"))) return;
  const ConfigKey& key = find_key(config_key_table(config), name);
  // A key of type text accepts `run.name=2026` as text.
  const bool wants_text = std::holds_alternative<std::string>(key.get(config));
  require(wants_text || !document.get("v")->is_string() || !is_beyond_numbers(written), key.name, " = ",
          written, " is beyond what a whole number holds, at most ",
          std::numeric_limits<std::int64_t>::max());
  if (wants_text && !document.get("v")->is_string()) document = text_document(written);
  apply(config, key, *document.get("v"));
}

}  // namespace

const ConfigKey& find_key(const Table& table, const std::string& name) {
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const ConfigKey& r) { return r.name == name; });
  // Suggestions are computed on failure only: they compare every key, and a search for plans looks up keys
  // often.
  if (row == table.end()) throw InvalidArgument(text("unknown key '", name, "'", suggest_key(table, name)));
  return *row;
}

RunConfig load_run_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                          const std::shared_ptr<const Registry>& registry) {
  RunConfig config;
  config.source = file.string();
  config.registry = registry;
  config.named.emplace();
  apply_document(config, read_bounded_stream(file, kMaxConfigBytes, "configuration"), file.string());
  for (const std::string& one : overrides) {
    at_place(text("--set ", one), [&] { apply_override(config, one); });
  }
  return config;
}

RunConfig parse_run_config(const std::string& content, const std::string& name,
                           const std::shared_ptr<const Registry>& registry) {
  RunConfig config;
  config.registry = registry;
  config.named.emplace();
  apply_document(config, content, name);
  return config;
}

}  // namespace trireme::train
