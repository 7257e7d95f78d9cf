#pragma once
// Keys and values of earlier versions that configurations no longer have. Each is an error that names its
// replacement. Files that runs of earlier versions wrote name every key, so a removed key is accepted with
// the value that had no effect.

#include <span>
#include <string_view>

namespace trireme::train {

struct RemovedKey {
  std::string_view name;     ///< "table.key"
  double without_effect;     ///< the value with which it did nothing
  std::string_view instead;  ///< the end of the error: how to replace it
};

struct RemovedValue {
  std::string_view key, value;
  std::string_view instead;
};

std::span<const RemovedKey> removed_keys();
std::span<const RemovedValue> removed_values();

/// Null: there was no such key.
const RemovedKey* find_removed_key(std::string_view name);
/// Null: the key never took it.
const RemovedValue* find_removed_value(std::string_view key, std::string_view value);

}  // namespace trireme::train
