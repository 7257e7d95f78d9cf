#pragma once
// Sockets and physical cores of a machine's hardware threads, and their assignment to processes that share
// them: cores of their own, near each other. A core has the kernel's number, a hardware thread. share_out()
// and with_nodes() are pure; core_places() reads the kernel's current values.

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace trireme::topology {

/// A core and its shared resources: those of equal numbers are one. 0 where the kernel has none.
struct CorePlace {
  int number = 0;
  int socket = 0;
  int node = 0;      ///< NUMA
  int cache = 0;     ///< of the last level: its first core
  int physical = 0;  ///< number within the socket; hardware threads of one have the same
};

/// Of those cores, by /sys/devices/system/cpu.
std::vector<CorePlace> core_places(std::span<const int> cores,
                                   const std::filesystem::path& system = "/sys/devices/system/cpu");

/// For each of `processes` cores of its own, in ascending order: physical ones by socket, node and cache, cut
/// into parts that differ by one at most; hardware threads where there are fewer physical cores than
/// processes. Throws InvalidArgument: more processes than cores, or none.
std::vector<std::vector<int>> share_out(std::vector<CorePlace> places, int processes);

/// For each of those all cores of the NUMA nodes that its own are in, which it then shares.
std::vector<std::vector<int>> with_nodes(const std::vector<CorePlace>& places,
                                         const std::vector<std::vector<int>>& shares);

/// "0-3,8": ascending numbers.
std::string describe_cores(std::span<const int> cores);

}  // namespace trireme::topology
