#include "cli/topology/host_hardware.h"

#include <hwloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/host.h"

namespace trireme::cli {
namespace {

class HardwareTree {
 public:
  HardwareTree() {
    if (::hwloc_topology_init(&tree_) != 0) throw InternalError("hwloc has no memory for a topology");
    if (::hwloc_topology_load(tree_) == 0) return;
    ::hwloc_topology_destroy(tree_);
    throw InternalError("hwloc finds no hardware here");
  }
  ~HardwareTree() { ::hwloc_topology_destroy(tree_); }
  HardwareTree(const HardwareTree&) = delete;
  HardwareTree& operator=(const HardwareTree&) = delete;

  int count(hwloc_obj_type_t type) const { return std::max(0, ::hwloc_get_nbobjs_by_type(tree_, type)); }

  /// Caches of one type; none if the machine does not report them.
  void add_caches(hwloc_obj_type_t type, const char* name, std::vector<Cache>& caches) const {
    if (count(type) == 0) return;
    const hwloc_obj_t first = ::hwloc_get_obj_by_type(tree_, type, 0);
    caches.push_back({.name = name, .bytes = first->attr->cache.size, .count = count(type)});
  }

 private:
  hwloc_topology_t tree_ = nullptr;
};

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<Interface> interfaces() {
  std::vector<Interface> result;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net", none)) {
    const std::string state = first_line(entry.path() / "operstate");
    // Loopback and tunnels have the state "unknown", and loopback has no speed.
    if (state == "down" || entry.path().filename() == "lo" || state.empty()) continue;
    const std::int64_t speed = std::strtoll(first_line(entry.path() / "speed").c_str(), nullptr, 10);
    result.push_back({.name = entry.path().filename(), .megabits_per_s = std::max<std::int64_t>(speed, 0)});
  }
  std::ranges::sort(result, {}, &Interface::name);
  return result;
}

}  // namespace

HostHardware host_hardware() {
  const HardwareTree tree;
  HostHardware host{.name = host_name(),
                    .sockets = tree.count(HWLOC_OBJ_PACKAGE),
                    .numa_nodes = tree.count(HWLOC_OBJ_NUMANODE),
                    .cores = tree.count(HWLOC_OBJ_CORE),
                    .threads = tree.count(HWLOC_OBJ_PU),
                    .usable = available_cores(),
                    .caches = {},
                    .interfaces = interfaces()};
  tree.add_caches(HWLOC_OBJ_L1CACHE, "L1d", host.caches);
  tree.add_caches(HWLOC_OBJ_L2CACHE, "L2", host.caches);
  tree.add_caches(HWLOC_OBJ_L3CACHE, "L3", host.caches);
  tree.add_caches(HWLOC_OBJ_L4CACHE, "L4", host.caches);
  return host;
}

}  // namespace trireme::cli
