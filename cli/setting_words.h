#pragma once
// Completion of --set KEY=VALUE: the keys of a configuration, and the values of those that have names.
// Values; thread-safe.

#include <string>
#include <vector>

namespace trireme::cli {

/// A row of the table of keys, as docs/configuration.md shows it.
struct Setting {
  std::string name;     ///< "optimizer.lr"
  std::string type;     ///< "text", "true or false", ...
  std::string allowed;  ///< "at least 1"; of a text, the names that it may be: "replicas, ps"

  bool operator==(const Setting&) const = default;
};

/// Ours, without libtorch: made from docs/configuration.md by the build. A test holds them to the table.
std::vector<Setting> shipped_settings();

/// What may stand behind "KEY="; empty: anything, a number, a list.
std::vector<std::string> values_of(const Setting& setting);

/// Shell functions that offer "KEY=" and, after it, values.
///
/// bash: _trireme_settings WORD fills COMPREPLY; `KEY=` keeps the cursor after it.
std::string settings_for_bash(const std::vector<Setting>& settings);
/// zsh: _trireme_settings is an action of _arguments.
std::string settings_for_zsh(const std::vector<Setting>& settings);
/// fish: __trireme_settings prints whole words for the one under the cursor.
std::string settings_for_fish(const std::vector<Setting>& settings);

}  // namespace trireme::cli
