#pragma once
// The coordinator's memory on its disk: a snapshot of the map, and then a log of changes, each with its
// size and checksum. A change is safe when append() returns. A change that a crash has truncated was never
// announced and is forgotten. One thread.

#include "trireme/ps/cluster_map.h"
#include "trireme/wire/node.h"

namespace trireme::ps {

class CoordinatorLog {
 public:
  explicit CoordinatorLog(wire::Disk& disk) : disk_(disk) {}

  /// The synced map, and a new snapshot of it. Throws DataError for a snapshot that is damaged.
  ClusterMap load();
  /// Throws DataError when the disk does not take it; the next call then writes everything.
  void append(const MapChange& change, const ClusterMap& after);

 private:
  void write_snapshot(const ClusterMap& map);

  wire::Disk& disk_;
  std::uint32_t num_appended_ = 0;
  bool is_whole_ = true;
};

}  // namespace trireme::ps
