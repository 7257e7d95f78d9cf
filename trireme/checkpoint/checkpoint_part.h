#pragma once
// One checkpoint by several writers. Each writes the files of its part and then a record of them. The first
// one finishes: it waits for the records, writes the manifest and puts the folder in place. Writers need only
// a common folder; their files are in a temporary folder until then. Its name distinguishes records of an
// earlier attempt. See docs/checkpoint-format.md, docs/adr/0018-state-is-shards.md.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "trireme/checkpoint/shard.h"

namespace trireme::checkpoint {

/// Prefix of the names of the optimizer's tensors in the state of a run; in their files they do not have it.
inline constexpr const char* kOptimizerPrefix = "optimizer/";

/// Position of a run.
struct CheckpointHead {
  std::int64_t step = 0;    ///< updates done
  std::uint64_t epoch = 0;  ///< of the next batch
  std::int64_t batch = 0;   ///< number within the epoch of the next batch
  std::string config = {};  ///< text of the run's configuration
};

/// The same for all writers of a save.
struct CheckpointAttempt {
  int num_parts = 1;
  std::string name = "0";  ///< another one for each save, with the prefix of the run that makes it
  std::string prefix = "0";
};

struct CheckpointPart {
  CheckpointHead head;
  CheckpointAttempt attempt = {};
  int number = 0;  ///< of the writer; number 0 finishes
  Shards shards = {};
};

/// Writes and syncs the part's files and record. Throws DataError; the finisher then waits until
/// reject_part() reports it.
void write_part(const std::filesystem::path& folder, const CheckpointPart& part);

/// Reports to the finisher that this part does not come, with the reason, where that can be written.
void reject_part(const std::filesystem::path& folder, const CheckpointPart& part, const std::string& reason);

/// For writer 0, whose part is written: makes `folder`/step-NNNNNNNN of all parts, replacing one of the same
/// step. Then removes all but the newest `keep` checkpoints (0: keeps all), those of later steps (a run that
/// went back to before them has made them void), and incomplete files of earlier attempts. Only folders with
/// a manifest of Trireme are replaced or removed. `wait` is called while records are missing: it waits a
/// little, and returns whether to continue waiting. Returns the new folder. Throws DataError (a part that
/// does not come, disk full, not writable, the path is taken): earlier checkpoints are untouched then.
std::filesystem::path finish_checkpoint(const std::filesystem::path& folder, const CheckpointPart& part,
                                        int keep, const std::function<bool()>& wait);

/// For writer 0, when its own part has failed: waits for the others as finish_checkpoint does, and removes
/// their files.
void abandon_checkpoint(const std::filesystem::path& folder, const CheckpointPart& part,
                        const std::function<bool()>& wait) noexcept;

}  // namespace trireme::checkpoint
