#pragma once
// From what a person names to the checkpoints that are meant: a run's folder, its folder of checkpoints, one
// of them, or a file.

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::cli {

struct CheckpointPlace {
  std::filesystem::path path;                      ///< as named, without a slash at its end
  std::vector<std::filesystem::path> checkpoints;  ///< oldest first; empty: `path` is a file
  bool is_file() const { return checkpoints.empty(); }
};

/// Throws DataError when there is nothing, or no checkpoint in it.
CheckpointPlace find_checkpoints(const std::string& named);

struct RunNames {
  std::string run;
  std::string model;
};

/// run.name and model.name of a configuration's text, of whatever version it is; empty where it has none.
RunNames names_in_config(const std::string& config);

}  // namespace trireme::cli
