#pragma once
// A disk of a few kilobytes: a tmpfs over a folder, in a private mount namespace of one command and its
// children. Needs root. small_disk_unavailable_because() says what is missing.

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::test {

/// Empty if small disks are available.
std::string small_disk_unavailable_because();

struct SmallDisk {
  std::string size;                 ///< in the form of mount: "64k"
  std::filesystem::path folder;     ///< mount point
  std::filesystem::path keep = {};  ///< if given: its files are copied here when the command ends
};

/// The command line that runs `command` with the disk. It ends with the command's exit code.
std::vector<std::string> on_small_disk(const SmallDisk& disk, const std::vector<std::string>& command);

}  // namespace trireme::test
