#pragma once
// One training run from a configuration to a summary: what `trireme train` does on every rank, and the call
// for programs that want a whole run. Writes runs/NAME/: config.toml, metrics.jsonl, checkpoints/,
// model.safetensors, summary.json, all by rank 0. Collective: every rank of the world calls it with the same
// configuration.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trireme/comm/context.h"
#include "trireme/train/evaluate.h"
#include "trireme/train/run_config.h"
#include "trireme/train/stop_request.h"

namespace trireme::train {

enum class RunStart {
  kFresh,   ///< a finished or abandoned run of that name is moved to NAME.1, NAME.2, ...
  kResume,  ///< goes on from the newest valid checkpoint of that name
};

struct RunResult {
  std::string status;  ///< "completed", "interrupted"
  int exit_code = 0;   ///< 0, or 128 + the signal that interrupted the run
  std::filesystem::path folder;
  int world_size = 1;
  std::int64_t steps = 0;                ///< done by the end, those before a resume included
  std::optional<Evaluation> evaluation;  ///< the last one
  std::string held_out = "test";         ///< name of the data it was on
  double train_loss = 0;                 ///< mean over the samples of the last epoch
  double samples_per_s = 0;              ///< all ranks together, time of evaluations and checkpoints left out
  double wall_s = 0;                     ///< of this process, from the start of the run
  std::uint64_t peak_rss_bytes = 0;      ///< of the largest rank
  std::string weights_xxh3;              ///< of parameters and buffers
};

/// Trains until the configured end, or until `stop` says so on any rank; all ranks end at the same step. A
/// context whose launcher has restarted the world resumes by itself where a checkpoint is. Throws
/// DivergedError (loss not finite: step and rank named), CommError, DataError, InvalidArgument.
RunResult run_training(const RunConfig& config, comm::Context& context, RunStart start = RunStart::kFresh,
                       const StopRequest* stop = nullptr);

}  // namespace trireme::train
