#pragma once
// The shards of all ranks of a group: the same value on every rank, made once for names and boxes that stay
// the same. Each rank alone computes its work on shards from it. Thread-safe to read.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/checkpoint/shard.h"
#include "trireme/comm/group.h"

namespace trireme::checkpoint {

class ShardCatalogue {
 public:
  /// One distinct shard.
  struct Entry {
    std::string name;
    std::vector<std::int64_t> global_sizes;
    at::ScalarType type = at::kFloat;
    Box box;
    Replicas replicas = Replicas::kEqual;
    std::vector<int> holders;  ///< ranks, rising

    std::uint64_t bytes() const;
    /// Whether that rank of the group has the shard, alone or next to others.
    bool is_held_by(int rank) const;
  };

  /// Collective. Throws CommError; InvalidArgument when two ranks hold a name differently: in sizes or type.
  ShardCatalogue(comm::Group group, const Shards& mine);
  /// Not collective, for a caller that has all entries.
  explicit ShardCatalogue(std::vector<Entry> entries);

  /// By name, those of one name by their boxes.
  const std::vector<Entry>& entries() const { return entries_; }
  /// The shards of that name; none where no rank holds it.
  std::span<const Entry> of(const std::string& name) const;
  /// Throws InvalidArgument unless the shards of each tensor cover it, each element once.
  void check_complete() const;

 private:
  void check_alike() const;

  std::vector<Entry> entries_;
};

/// The entry's box as a shard with memory of its own on the host, not yet filled.
Shard empty_shard(const ShardCatalogue::Entry& entry);

/// A rank's work for a shard that is to be written.
struct ShardWriter {
  int writer = 0;
  int source = 0;  ///< the holder whose numbers are written; the writer itself wherever that is possible
};

/// A writer for each entry, out of the ranks with `may_write`: a holder where possible, and so that ranks
/// write similar numbers of bytes. The same on every rank.
std::vector<ShardWriter> share_out(const ShardCatalogue& catalogue, const std::vector<bool>& may_write);

}  // namespace trireme::checkpoint
