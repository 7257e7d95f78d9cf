#pragma once
// Transfers elements of tensors from the ranks that have them to the ranks that want them, for any boxes on
// either side. Each overlap is sent once, in pieces, so a rank needs one piece of memory besides its own
// shards. Made once for layouts that stay the same. Collective; one thread.

#include <string>
#include <vector>

#include "trireme/checkpoint/shard.h"
#include "trireme/checkpoint/shard_catalogue.h"
#include "trireme/comm/group.h"

namespace trireme::checkpoint {

/// Bytes that go over at once.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{16} << 20;

class ShardExchange {
 public:
  /// `have`, `want`: of this rank, for their names and boxes. Throws CommError; InvalidArgument when ranks
  /// hold a name differently, or a rank wants elements that no rank has.
  ShardExchange(comm::Group group, const Shards& have, const Shards& want);

  /// Copies from `have` of all ranks into the tensors of `want`: of the same names and boxes as before.
  void run(const Shards& have, const Shards& want);

 private:
  struct Transfer {
    std::string name;
    Box from, to, box;  ///< the shards on both sides, and their overlap
    int source = 0;
    int destination = 0;
  };
  void plan(const ShardCatalogue::Entry& wanted, const ShardCatalogue& have);

  comm::Group group_;
  std::vector<Transfer> transfers_;  ///< the same on all ranks, in the order in which all carry them out
};

/// Copies the box that `from` holds on rank `source` into `to` on rank `destination`; of one shape, and
/// ignored on other ranks. For ranks that know both sides. Collective for the two.
void carry(comm::Group& group, const Place& from, int source, const Place& to, int destination);

}  // namespace trireme::checkpoint
