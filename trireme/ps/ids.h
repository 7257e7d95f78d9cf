#pragma once
// The numbers that the parameter server's protocol speaks of. Values.

#include <compare>
#include <cstdint>
#include <limits>
#include <tuple>

namespace trireme::ps {

using TableId = std::uint32_t;
/// A number below the cluster's number of partitions.
using PartitionId = std::uint32_t;
using ServerId = std::uint32_t;     ///< of one process that serves: a restarted one has another
using WorkerId = std::uint32_t;     ///< a worker's rank: sums in worker order follow it
using Incarnation = std::uint64_t;  ///< of one process: a number drawn when it starts
using MapVersion = std::uint64_t;   ///< counts the changes of the cluster
using Epoch = MapVersion;           ///< of a partition: the map version that last changed its roles
using Version = std::uint64_t;      ///< counts the records of a partition's log
using Sequence = std::uint64_t;     ///< number of a request of one worker to one partition: 1, 2, 3, ...
using WorkerClock = std::uint64_t;  ///< how many steps a worker has ended
using RequestId = std::uint64_t;    ///< of one client

/// The number of no server: not given yet, or none.
inline constexpr ServerId kNoServer = 0;

/// One life of a worker.
struct WorkerLife {
  WorkerId worker = 0;
  Incarnation incarnation = 0;
  auto operator<=>(const WorkerLife&) const = default;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.worker, self.incarnation);
  }
};

}  // namespace trireme::ps
