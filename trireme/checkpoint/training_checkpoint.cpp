#include "trireme/checkpoint/training_checkpoint.h"

#include <ATen/ops/empty.h>

#include "trireme/base/bounded_file.h"
#include "trireme/checkpoint/internal/manifest.h"
#include "trireme/checkpoint/shard_reader.h"

namespace trireme::checkpoint {
namespace fs = std::filesystem;

fs::path save_checkpoint(const fs::path& folder, const TrainingCheckpoint& checkpoint, int keep) {
  CheckpointPart part;
  part.head = {.step = checkpoint.step,
               .epoch = checkpoint.epoch,
               .batch = checkpoint.batch,
               .config = checkpoint.config};
  part.shards = whole_shards(checkpoint.model);
  for (const auto& [name, tensor] : checkpoint.optimizer)
    part.shards.push_back(whole_shard(kOptimizerPrefix + name, tensor));
  const auto alone = [] { return false; };  // there is no other part to wait for
  try {
    write_part(folder, part);
  } catch (...) {
    abandon_checkpoint(folder, part, alone);
    throw;
  }
  return finish_checkpoint(folder, part, keep, alone);
}

void check_whole(const fs::path& checkpoint_folder) {
  for (const FileRecord& record : read_manifest(checkpoint_folder).files) {
    if (const std::string problem = problem_of(checkpoint_folder, record); !problem.empty())
      throw DamagedCheckpoint(text((checkpoint_folder / record.name).string(), " ", problem));
  }
}

TrainingCheckpoint load_checkpoint(const fs::path& checkpoint_folder) {
  check_whole(checkpoint_folder);
  const Manifest manifest = read_manifest(checkpoint_folder);
  TrainingCheckpoint loaded{
      .step = manifest.step,
      .epoch = manifest.epoch,
      .batch = manifest.batch,
      .config = read_bounded_file(checkpoint_folder / kConfigFile, kMaxConfigBytes, "configuration")};
  ShardReader reader(checkpoint_folder);
  const std::string_view of_optimizer = kOptimizerPrefix;
  for (const auto& [name, stored] : reader.tensors()) {
    at::Tensor tensor = at::empty(stored.sizes, at::TensorOptions(stored.type));
    reader.read(name, whole_box(stored.sizes), tensor);
    const bool is_model = !name.starts_with(of_optimizer);
    (is_model ? loaded.model : loaded.optimizer)
        .emplace(is_model ? name : name.substr(of_optimizer.size()), std::move(tensor));
  }
  return loaded;
}

}  // namespace trireme::checkpoint
