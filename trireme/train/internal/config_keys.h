#pragma once
// The table of configuration keys: one row per key, from which parsing, messages, `describe` and the check of
// docs/configuration.md all work.

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trireme/train/run_config.h"

namespace trireme::train {

using ConfigValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                                 std::vector<double>, std::vector<std::string>>;

/// Bounds of a number, or the names that a text may be; of a list: of each of its elements.
struct Allowed {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  double below = std::numeric_limits<double>::infinity();   ///< exclusive
  double above = -std::numeric_limits<double>::infinity();  ///< exclusive
  std::function<std::vector<std::string>()> names = nullptr;
  bool single_path_component = false;

  /// "at least 1", "0 to 1", "above 0"; the names; empty when everything is allowed.
  std::string describe() const;
};

struct ConfigKey {
  std::string name;  ///< "table.key"
  std::string meaning;
  Allowed allowed;
  std::function<ConfigValue(const RunConfig&)> get;
  /// The value has the alternative that `get` returns.
  std::function<void(RunConfig&, const ConfigValue&)> set;
  OnResume on_resume = OnResume::kMayChange;
};

const std::vector<ConfigKey>& config_key_table();

/// Name of the type that the value has: "whole number", "text", ...
std::string type_name(const ConfigValue& value);

/// The value as TOML.
std::string to_toml(const ConfigValue& value);

/// Throws InvalidArgument ("optimizer.lr = -1 is out of range: above 0") when the value is not allowed.
void check_allowed(const ConfigKey& key, const ConfigValue& value);

}  // namespace trireme::train
