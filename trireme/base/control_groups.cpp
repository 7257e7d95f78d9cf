#include "trireme/base/control_groups.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "trireme/base/text.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// Adds the group at `path` and all above it. In a container, `path` may be the host's, of which only the
/// last part exists. Then the mount's own folder is that of the container.
void add_with_all_above(const fs::path& mount, const std::string& path, int version,
                        std::vector<ControlGroup>& groups) {
  fs::path below = fs::path(path).relative_path();
  if (std::find(below.begin(), below.end(), "..") != below.end()) below.clear();
  for (; !below.empty(); below = below.parent_path()) groups.push_back({mount / below, version});
  groups.push_back({mount, version});
}

/// Mount point of the hierarchy with these controllers: named after one of them, or after all.
fs::path mount_of(const fs::path& mounts, const std::string& controller, const std::string& controllers) {
  std::error_code none;
  return mounts / (fs::exists(mounts / controller, none) ? controller : controllers);
}

/// "max 100000" or "200000 100000": microseconds of processor time per period of so many microseconds.
std::optional<double> quota_in(const ControlGroup& group) {
  std::string quota;
  double period = 0;
  if (group.version == 1) {
    std::ifstream(group.folder / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group.folder / "cpu.cfs_period_us") >> period;
  } else {
    std::ifstream(group.folder / "cpu.max") >> quota >> period;
  }
  const double granted = std::strtod(quota.c_str(), nullptr);  // "max" and "-1" grant everything
  return granted > 0 && period > 0 ? std::optional(granted / period) : std::nullopt;
}

/// `process`: its folder below proc.
std::vector<ControlGroup> groups_of(const std::string& process, const std::string& controller,
                                    const fs::path& root) {
  std::vector<ControlGroup> groups;
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc" / process / "cgroup");
  for (std::string line; std::getline(file, line);) {  // "HIERARCHY:CONTROLLERS:PATH"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      path = line.substr(second + 1);
    const auto list = split(controllers, ',');
    if (controllers.empty()) {
      std::error_code none;  // next to hierarchies of version 1 it has a separate folder
      const bool is_beside = fs::exists(mounts / "unified", none);
      add_with_all_above(is_beside ? mounts / "unified" : mounts, path, 2, groups);
    } else if (std::find(list.begin(), list.end(), controller) != list.end()) {
      add_with_all_above(mount_of(mounts, controller, controllers), path, 1, groups);
    }
  }
  return groups;
}

}  // namespace

std::vector<ControlGroup> control_groups(const std::string& controller, const fs::path& root) {
  return groups_of("self", controller, root);
}

std::vector<ControlGroup> control_groups_of(int pid, const std::string& controller, const fs::path& root) {
  return groups_of(std::to_string(pid), controller, root);
}

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> smallest;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    const std::optional<double> quota = quota_in(group);
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
  }
  return smallest;
}

}  // namespace trireme
