#pragma once
// The control groups that limit a process. Source: Linux, Documentation/admin-guide/cgroup-v1 and
// cgroup-v2.rst. Functions without state; thread-safe.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct ControlGroup {
  std::filesystem::path folder;  ///< with its files, which may be missing
  int version = 2;               ///< 1 or 2: which files it has
};

/// The control groups of this process that `controller` ("cpu", "memory") may limit, and all groups above
/// them, each before those above it. Reads proc/self/cgroup under `root`, and names folders of sys/fs/cgroup
/// there. Empty where the kernel has none.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root = "/");

/// The same of another process; also empty where it is gone.
std::vector<ControlGroup> control_groups_of(int pid, const std::string& controller,
                                            const std::filesystem::path& root = "/");

/// The smallest CPU quota of these groups, in cores (0.5: half of one core's time); none where no group has a
/// quota.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace trireme
