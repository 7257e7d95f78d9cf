#include "trireme/base/host.h"

#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "trireme/base/control_groups.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

int available_cores() {
  cpu_set_t mask;
  int cores = 1;
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0) cores = std::max(1, CPU_COUNT(&mask));
  const std::optional<double> quota = cpu_quota();
  return quota ? std::clamp(static_cast<int>(std::ceil(*quota - 1e-3)), 1, cores) : cores;
}

std::vector<int> allowed_cores() {
  cpu_set_t mask;
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  return cores;
}

CoreShare share_of_cores(std::span<const std::vector<int>> allowed, std::size_t mine) {
  CoreShare share{.num_processes = 0};
  std::set<int> own(allowed[mine].begin(), allowed[mine].end());
  std::map<int, int> processes_of;
  for (const std::vector<int>& each : allowed) {
    bool meets = false;
    for (const int core : each) {
      if (!own.contains(core)) continue;
      ++processes_of[core];
      meets = true;
    }
    share.num_processes += meets;
  }
  for (const auto& [core, processes] : processes_of) share.cores += 1.0 / processes;
  return share;
}

std::uint64_t peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

Processor processor() {
  std::map<std::string, std::string, std::less<>> fields;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    fields.emplace(trim(std::string_view(line).substr(0, colon)),
                   trim(std::string_view(line).substr(colon + 1)));
  }
  return {.model = text(fields["vendor_id"], " ", fields["cpu family"], "-", fields["model"], "-",
                        fields["stepping"], " ", fields["model name"]),
          .instructions = fields["flags"]};
}

bool keep_freed_memory() {
  // If another allocator is in use (jemalloc, a sanitizer's), this one has allocated nothing.
  const struct mallinfo2 in_use = ::mallinfo2();
  if (in_use.arena + in_use.hblkhd == 0) return false;
  for (const char* name : {"GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}) {
    if (std::getenv(name) != nullptr) return false;
  }
  // Older versions of the library reject more than 32 MiB for the second one.
  constexpr int kLarge = 1 << 30;
  return ::mallopt(M_TRIM_THRESHOLD, kLarge) == 1 &&
         (::mallopt(M_MMAP_THRESHOLD, kLarge) == 1 || ::mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1);
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "?";
}

std::string boot_id() { return first_line("/proc/sys/kernel/random/boot_id"); }

std::string host_id() {
  const auto said = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string site = said("TRIREME_SITE"), prefix = site.empty() ? site : site + "/";
  if (const std::string chosen = said("TRIREME_HOST_ID"); !chosen.empty()) return prefix + chosen;
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", space.data(), space.size() - 1);
  return prefix + boot_id() + "/" +
         std::string(space.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
}

}  // namespace trireme
