#include "cli/checkpoint_place.h"

#include "trireme/base/error.h"
#include "trireme/base/toml.h"
#include "trireme/base/toml_nesting.h"
#include "trireme/checkpoint/training_checkpoint.h"

namespace trireme::cli {

namespace fs = std::filesystem;

CheckpointPlace find_checkpoints(const std::string& named) {
  fs::path path = named;
  if (path.filename().empty()) path = path.parent_path();
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) throw DataError(text("there is no file or folder ", path.string()));
  if (!fs::is_directory(status)) return {.path = path, .checkpoints = {}};
  for (const fs::path& folder : {path, path / "checkpoints"}) {
    auto found = checkpoint::list_checkpoints(folder);
    if (!found.empty()) return {.path = path, .checkpoints = std::move(found)};
  }
  // A folder without its manifest still counts as a checkpoint, so that `verify` can report it.
  if (fs::exists(path / "manifest.json", error) || path.filename().string().starts_with("step-"))
    return {.path = path, .checkpoints = {path}};
  throw DataError(text("no checkpoint in ", path.string(),
                       ": expected folders step-NNNNNNNN in it or in its folder checkpoints, or a "
                       "manifest.json; name the folder of a run, or train with checkpoint.every_steps set"));
}

RunNames names_in_config(const std::string& config) {
  if (line_of_deep_key(config)) return {};
  try {
    const toml::table table = toml::parse(config);
    return {.run = table["run"]["name"].value_or(std::string()),
            .model = table["model"]["name"].value_or(std::string())};
  } catch (const toml::parse_error&) {
    return {};
  }
}

}  // namespace trireme::cli
