#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "cli/doctor/finding.h"
#include "trireme/base/available_memory.h"
#include "trireme/base/host.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "Name: value" lines, as /proc/meminfo and /proc/cpuinfo have them; the first of each name counts.
std::map<std::string, std::string> table_of(const std::string& path) {
  std::map<std::string, std::string> table;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    table.emplace(trim(line.substr(0, colon)), trim(line.substr(colon + 1)));
  }
  return table;
}

Finding check_cores() {
  cpu_set_t mask;
  const int allowed = ::sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  const int usable = available_cores();
  Finding finding{.subject = "cores", .found = text(usable, " usable"), .advice = ""};
  const long present = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (allowed < present) finding.found += text(", of ", present, " by affinity");
  if (usable < allowed) finding.found += ", limited by the control group's quota";
  if (usable == 1) {
    finding.state = FindingState::kSlow;
    finding.advice = "several ranks will take turns on one core: train with -n 1";
  }
  return finding;
}

Finding check_processor() {
  const auto table = table_of("/proc/cpuinfo");
  const auto find = [&](const char* name) { return table.contains(name) ? table.at(name) : std::string(); };
  const std::string flags = text(" ", find("flags"), " ");
  std::string features;
  for (const auto* name : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (flags.find(text(" ", name, " ")) != std::string::npos) features += text(" ", name);
  }
  Finding finding{.subject = "processor", .found = text(find("model name"), ":", features), .advice = ""};
  if (flags.find(" avx2 ") == std::string::npos && flags != "  ") {
    finding.state = FindingState::kSlow;
    finding.advice = "no AVX2: libtorch falls back to slow kernels";
  } else if (features.find("bf16") == std::string::npos) {
    finding.advice = "train.precision = \"bf16\" saves memory here but no time";
  }
  return finding;
}

std::uint64_t kilobytes(const std::map<std::string, std::string>& table, const char* name) {
  const auto entry = table.find(name);
  return entry == table.end() ? 0 : std::strtoull(entry->second.c_str(), nullptr, 10) * 1024;
}

Finding check_memory() {
  const auto table = table_of("/proc/meminfo");
  const std::uint64_t total = kilobytes(table, "MemTotal");
  const AvailableMemory available = available_memory();
  Finding finding{.subject = "memory",
                  .found = text(human_bytes(available.bytes), " free of ", human_bytes(total)),
                  .advice = ""};
  if (available.group_limit_bytes)
    finding.found += text(", the control group may use ", human_bytes(*available.group_limit_bytes));
  constexpr std::uint64_t kSmall = std::uint64_t{1} << 30;
  if (available.bytes < kSmall) {
    finding.state = FindingState::kSlow;
    finding.advice = "each rank needs about 200 MiB before its model: end other programs or use fewer ranks";
  }
  return finding;
}

Finding check_limit(const char* subject, int resource, rlim_t least, const std::string& advice) {
  rlimit limit{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  Finding finding{.subject = subject,
                  .found = limit.rlim_cur == RLIM_INFINITY ? "no limit" : text(limit.rlim_cur),
                  .advice = ""};
  if (limit.rlim_cur < least) {
    finding.state = FindingState::kSlow;
    finding.advice = advice;
  }
  return finding;
}

Finding check_clock() {
  const std::string source = first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  Finding finding{.subject = "clock", .found = source.empty() ? "unknown" : source, .advice = ""};
  if (source == "hpet" || source == "acpi_pm" || source == "jiffies") {
    finding.state = FindingState::kSlow;
    finding.advice = "reading the time is a slow system call here; choose tsc or kvm-clock if there is one";
  }
  return finding;
}

}  // namespace

Findings check_host() {
  return {check_cores(),
          check_processor(),
          check_memory(),
          check_limit("open files", RLIMIT_NOFILE, 1024,
                      "many ranks or loader workers need more: ulimit -n 65536"),
          check_limit("locked memory", RLIMIT_MEMLOCK, 64 * 1024,
                      "pinned memory for GPUs needs more: ulimit -l unlimited"),
          check_clock()};
}

}  // namespace trireme::cli
