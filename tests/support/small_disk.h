#pragma once
// A disk of a few kilobytes: a tmpfs over a folder, in a mount namespace that one command and its children
// have to themselves. Needs root; small_disk_unavailable_because() says what is missing.

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::test {

/// Empty when there can be small disks.
std::string small_disk_unavailable_because();

struct SmallDisk {
  std::string size;                 ///< as mount takes it: "64k"
  std::filesystem::path folder;     ///< what it covers
  std::filesystem::path keep = {};  ///< if given: where its files are copied when the command has ended
};

/// The words that run `command` with the disk in place; they end with the command's exit code.
std::vector<std::string> on_small_disk(const SmallDisk& disk, const std::vector<std::string>& command);

}  // namespace trireme::test
