#pragma once
// The checkpoints of a run as its ranks read and write them together. It assigns parts to writers, reads for
// ranks that do not see the folder, and finds the whole checkpoints. Rank 0 owns the folder; the others may
// see it or not. All calls are collective; one thread.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/checkpoint/shard.h"
#include "trireme/checkpoint/shard_catalogue.h"
#include "trireme/checkpoint/shard_exchange.h"
#include "trireme/comm/group.h"

namespace trireme::checkpoint {

/// Which ranks see the file `witness` as rank 0 does, and may write into its folder: those whose file has the
/// same content. Rank 0, which has written it, always does.
std::vector<bool> ranks_that_see(comm::Group group, const std::filesystem::path& witness);

/// The parts of a state that ranks write, computed once for names and boxes that stay the same.
class SaveShares {
 public:
  /// `mine`: this rank's shards; together they cover every tensor. Throws CommError, InvalidArgument.
  SaveShares(comm::Group group, const Shards& mine, const std::vector<bool>& may_write);

  /// This rank's part of the next save: its own shards are shared, those it writes for others are copies.
  /// Empty for a rank that writes nothing.
  std::optional<CheckpointPart> next_part(const Shards& mine, CheckpointHead head);

 private:
  Shards incoming() const;

  comm::Group group_;
  const ShardCatalogue catalogue_;
  std::vector<ShardWriter> writers_;         ///< of the catalogue's entries
  std::vector<int> parts_;                   ///< ranks that write, rising; rank 0 always does
  std::optional<ShardExchange> to_writers_;  ///< where some are written by others than their holders
  std::string run_;                          ///< identifies the saves of this run
  std::uint64_t num_saves_ = 0;
};

/// Makes one checkpoint of the parts of all ranks, as finish_checkpoint() does, and returns when it is
/// complete. Throws DataError on every rank: earlier checkpoints are untouched then.
void save_together(comm::Group group, const std::optional<CheckpointPart>& part,
                   const std::filesystem::path& folder, int keep);

/// A checkpoint that has been verified.
struct FoundCheckpoint {
  std::filesystem::path folder;
  CheckpointHead head;  ///< on rank 0 with the configuration
};

/// The newest checkpoint of `folder`, each of its files verified by one of the ranks that see it; empty when
/// there is none. Rank 0 renames those that are damaged to step-NNNNNNNN.damaged-1, ..., and passes over
/// folders that only have such a name, both with a warning. Throws, on every rank, DataError where the newest
/// one cannot be read (no right to read, a failing disk, a newer format): an older one is no substitute for
/// it.
std::optional<FoundCheckpoint> find_latest_checkpoint(comm::Group group, const std::filesystem::path& folder,
                                                      const std::vector<bool>& sees, const Log& log);

/// Fills `mine` of every rank from a checkpoint that has been verified: ranks that see it read their ranges,
/// others receive them. Throws DataError, on every rank and before any copy, when a name is missing or has
/// another shape or type; `what` is its name in the message.
void load_shards(comm::Group group, const std::filesystem::path& checkpoint_folder, const Shards& mine,
                 const std::vector<bool>& sees, const char* what);

}  // namespace trireme::checkpoint
