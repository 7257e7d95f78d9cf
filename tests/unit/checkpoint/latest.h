#pragma once
// The latest valid checkpoint of a folder, as a run of one rank finds it.

#include <filesystem>
#include <optional>

#include "trireme/checkpoint/shared_folder.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/context.h"

namespace trireme::checkpoint {

inline std::optional<TrainingCheckpoint> load_latest(const std::filesystem::path& folder) {
  std::optional<TrainingCheckpoint> loaded;
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    if (const auto found = find_latest_checkpoint(context.world(), folder, {true}, Log("test")))
      loaded = load_checkpoint(found->folder);
  });
  return loaded;
}

}  // namespace trireme::checkpoint
