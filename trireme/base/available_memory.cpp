#include "trireme/base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "trireme/base/control_groups.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Table = std::map<std::string, std::uint64_t>;

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;  ///< version 1: a number near 2^63

/// Lines of a name and a number, as /proc/meminfo and memory.stat have them.
Table table_of(const fs::path& path) {
  Table table;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    if (std::uint64_t number = 0; words >> name >> number) table.emplace(name, number);
  }
  return table;
}

std::uint64_t sum_of(const Table& table, std::initializer_list<const char*> names) {
  std::uint64_t sum = 0;
  for (const char* name : names) {
    const auto found = table.find(name);
    if (found != table.end()) sum += found->second;
  }
  return sum;
}

/// nullopt: the file is missing or holds a word ("max").
std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

/// Page cache that the kernel can free. The lists of file pages exclude shared memory, which counts as
/// anonymous. Dirty pages become free only after the disk has written them. Names with "total_" are those of
/// version 1, where the others exclude the groups below.
std::uint64_t reclaimable_bytes(const fs::path& folder) {
  const Table table = table_of(folder / "memory.stat");
  const bool is_version_1 = table.contains("total_inactive_file");
  const std::uint64_t files = is_version_1 ? sum_of(table, {"total_inactive_file", "total_active_file"})
                                           : sum_of(table, {"inactive_file", "active_file"});
  const std::uint64_t unwritten = is_version_1 ? sum_of(table, {"total_dirty", "total_writeback"})
                                               : sum_of(table, {"file_dirty", "file_writeback"});
  return files > unwritten ? files - unwritten : 0;
}

struct Group {
  fs::path folder;
  const char* limit;
  const char* used;
};

void take_account_of(const Group& group, AvailableMemory& memory) {
  const auto limit = number_in(group.folder / group.limit), used = number_in(group.folder / group.used);
  if (!limit || !used || *limit >= kNoLimit) return;
  const std::uint64_t reclaimable = std::min(*used, reclaimable_bytes(group.folder));
  const std::uint64_t needed = *used - reclaimable;
  memory.bytes = std::min(memory.bytes, *limit > needed ? *limit - needed : 0);
  memory.group_limit_bytes = std::min(memory.group_limit_bytes.value_or(kUnlimited), *limit);
}

}  // namespace

AvailableMemory available_memory(const fs::path& root) {
  AvailableMemory memory{.bytes = kUnlimited, .group_limit_bytes = {}};
  const Table host = table_of(root / "proc/meminfo");
  if (const auto kib = host.find("MemAvailable:"); kib != host.end()) memory.bytes = kib->second * 1024;
  for (const ControlGroup& group : control_groups("memory", root)) {
    if (group.version == 1)
      take_account_of({group.folder, "memory.limit_in_bytes", "memory.usage_in_bytes"}, memory);
    else
      take_account_of({group.folder, "memory.max", "memory.current"}, memory);
  }
  return memory;
}

std::uint64_t anonymous_memory(const fs::path& root) {
  return sum_of(table_of(root / "proc/self/status"), {"RssAnon:"}) * 1024;
}

}  // namespace trireme
