#pragma once
// A machine that is described instead of measured: its device, its hosts, the links within and between them.
// Read from TOML; docs/machines.md has the keys. A value.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "trireme/train/estimate/link_levels.h"

namespace trireme::train {

/// The device of a rank.
struct DeviceFacts {
  std::string name;
  std::map<std::string, double> peak_flop_s;    ///< of dense products, by train.precision
  double product_share = 1;                     ///< of the peak that a large product achieves
  double memory_bytes = 0, reserved_bytes = 0;  ///< reserved: not available to the run's tensors
  double memory_bytes_per_s = 0;
};

struct Machine {
  std::string name;
  DeviceFacts device;
  int hosts = 1, ranks_of_host = 1;
  LinkLevels links;

  int num_ranks() const { return hosts * ranks_of_host; }
  /// Of a rank.
  std::int64_t limit_bytes() const;
};

/// Throws InvalidArgument with the place: a key that is missing, unknown, of another type, or implausible for
/// its unit. `name` is the source's name in messages.
Machine parse_machine(const std::string& content, const std::string& name);
/// Throws DataError: the file cannot be read; InvalidArgument as parse_machine() does.
Machine read_machine(const std::filesystem::path& file);

}  // namespace trireme::train
