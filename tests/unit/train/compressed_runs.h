#pragma once
// Small runs with compressed gradients.

#include <ATen/ops/empty.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/compressions.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/training_checkpoint.h"

namespace trireme::train {

class CompressedTraining : public SmallRuns {
 protected:
  RunConfig compressed(const std::string& name, const std::string& compression) const {
    RunConfig result = config(name);
    result.model.hidden = {32};
    result.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
    result.parallel.compression = compression;
    result.parallel.compression_fraction = 0.02;
    result.parallel.compression_rank = 2;
    if (compression != "one-bit") return result;
    result.optimizer = {.name = "adamw", .lr = 0.01, .weight_decay = 0};
    result.train.clip_norm = 0;
    result.parallel.compression_warmup_steps = 4;
    return result;
  }
  std::filesystem::path newest(const std::string& run) const {
    return checkpoint::list_checkpoints(folder_ / run / "checkpoints").back();
  }
  /// Sums of the residuals over all replicas, by tensor.
  std::map<std::string, at::Tensor> sums_of_kept(const std::string& run) const {
    checkpoint::ShardReader reader(newest(run));
    std::map<std::string, at::Tensor> sums;
    for (const auto& [name, stored] : reader.tensors()) {
      if (name.find("/own/") == std::string::npos) continue;
      const at::Tensor rows = at::empty(stored.sizes);
      reader.read(name, checkpoint::whole_box(stored.sizes), rows);
      sums[name] = rows.sum(0);
    }
    return sums;
  }
};

}  // namespace trireme::train
