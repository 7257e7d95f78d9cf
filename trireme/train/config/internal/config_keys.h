#pragma once
// The table of configuration keys: one row per key, from which parsing, messages, `describe` and the check of
// docs/configuration.md all work.

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trireme/train/config/config_value.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// Most of an int; a bound that is not shown.
constexpr double kMaxInt = std::numeric_limits<int>::max();

struct ConfigKey {
  std::string name;  ///< "table.key"
  std::string meaning;
  Allowed allowed;
  std::function<ConfigValue(const RunConfig&)> get;
  /// The value has the alternative that `get` returns.
  std::function<void(RunConfig&, const ConfigValue&)> set;
  OnResume on_resume = OnResume::kMayChange;
  /// Value for runs before there was the key; none: its default.
  std::optional<ConfigValue> before_it_was = std::nullopt;
};

/// Whether the value was set: by a file or --set, or in code to another one than the default.
bool is_named(const RunConfig& config, const ConfigKey& key);

/// Names of a program's own parts, which keys take besides the shipped ones.
struct OwnNames {
  std::vector<std::string> models, datasets, objectives, metrics;
};
std::vector<ConfigKey> make_config_key_table(const OwnNames& own = {});
/// Of it the rows of the tables parallel, ps, offload, comm, cuda and nccl.
std::vector<ConfigKey> parallel_key_table();

/// The keys of that configuration: ours, and those of its registry.
const std::vector<ConfigKey>& config_key_table(const RunConfig& config = {});

/// Throws InvalidArgument, with the nearest key or the keys of the table, when it is unknown.
const ConfigKey& find_key(const std::vector<ConfigKey>& table, const std::string& name);

/// Name of the type that the value has: "whole number", "text", ...
std::string type_name(const ConfigValue& value);

/// The value as TOML.
std::string to_toml(const ConfigValue& value);

/// Throws InvalidArgument when the key holds values of another type.
void check_type(const ConfigKey& key, const ConfigValue& value);

/// Throws InvalidArgument ("optimizer.lr = -1 is out of range: above 0") when the value is not allowed.
void check_allowed(const ConfigKey& key, const ConfigValue& value);

}  // namespace trireme::train
