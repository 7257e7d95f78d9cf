#include "trireme/autopsy/process_readings.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "trireme/autopsy/internal/blocked_call.h"
#include "trireme/autopsy/internal/connections.h"
#include "trireme/base/clock.h"
#include "trireme/base/control_groups.h"
#include "trireme/base/host.h"
#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

/// Limit of the threads of a process that are read.
constexpr std::size_t kMaxThreads = 256;
/// Limit of the blocked threads in the evidence of a rank.
constexpr std::size_t kMaxBlocked = 8;

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The number after `key` in a file of lines "KEY VALUE"; 0: no such line.
std::uint64_t value_in(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key) && line.size() > key.size() &&
        (line[key.size()] == ' ' || line[key.size()] == '\t'))
      return std::strtoull(line.c_str() + key.size(), nullptr, 10);
  }
  return 0;
}

/// Fields of /proc/PID/stat after the name, which may contain any character. The first is the state, number
/// 3.
std::vector<std::string> stat_fields(const std::string& folder) {
  const std::string line = line_of(folder + "/stat");
  const std::size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos || end_of_name + 2 > line.size()) return {};
  return split(std::string_view(line).substr(end_of_name + 2), ' ');
}

std::uint64_t field(const std::vector<std::string>& fields, std::size_t number) {
  return number - 3 < fields.size() ? std::strtoull(fields[number - 3].c_str(), nullptr, 10) : 0;
}

double throttled_s_of(int pid) {
  double sum_s = 0;
  for (const ControlGroup& group : control_groups_of(pid, "cpu")) {
    const std::string stat = (group.folder / "cpu.stat").string();
    sum_s += group.version == 1 ? static_cast<double>(value_in(stat, "throttled_time")) * 1e-9
                                : static_cast<double>(value_in(stat, "throttled_usec")) * 1e-6;
  }
  return sum_s;
}

/// The folder of the frozen group; empty: no group is frozen.
std::string frozen_group(int pid) {
  for (const ControlGroup& group : control_groups_of(pid, "freezer")) {
    const std::string folder = group.folder.string();
    const std::string state = group.version == 1 ? line_of(folder + "/freezer.state") : "";
    const bool is_frozen = group.version == 1 ? !state.empty() && state != "THAWED"
                                              : value_in(folder + "/cgroup.events", "frozen") == 1;
    if (is_frozen) return folder;
  }
  return {};
}

double share(double part_s, double window_s) { return std::max(part_s / window_s, 0.0); }

/// 0 if the counter was reset.
double rate(std::uint64_t before, std::uint64_t now, double window_s) {
  return now > before ? static_cast<double>(now - before) / window_s : 0;
}

/// "full avg10=0.12 ..." as a share; 0 if the kernel does not measure it.
double pressure(const char* resource, std::string_view line_name) {
  std::ifstream file(text("/proc/pressure/", resource));
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find("avg10=");
    if (line.starts_with(line_name) && at != std::string::npos)
      return std::strtod(line.c_str() + at + 6, nullptr) / 100;
  }
  return 0;
}

}  // namespace

ProcessReadings read_process(int pid) {
  const std::string folder = text("/proc/", pid);
  const std::vector<std::string> fields = stat_fields(folder);
  if (fields.empty() || fields.front().empty()) return {};
  static const double tick_s = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  ProcessReadings now;
  now.at_s = now_s();
  now.state = fields.front().front();
  now.cpu_s = static_cast<double>(field(fields, 14) + field(fields, 15)) * tick_s;
  now.major_faults = field(fields, 12);
  {
    std::istringstream schedstat(line_of(folder + "/schedstat"));
    double ran_ns = 0, queued_ns = 0;
    schedstat >> ran_ns >> queued_ns;
    now.first_cpu_s = ran_ns * 1e-9;
    now.first_queue_s = queued_ns * 1e-9;
  }
  now.bytes = value_in(folder + "/io", "rchar:") + value_in(folder + "/io", "wchar:");
  now.swapped_bytes = value_in(folder + "/status", "VmSwap:") * 1024;
  now.throttled_s = throttled_s_of(pid);
  if (DIR* tasks = ::opendir((folder + "/task").c_str())) {
    while (const dirent* entry = ::readdir(tasks)) {
      const int tid = std::atoi(entry->d_name);
      if (tid <= 0 || now.threads.size() == kMaxThreads) continue;
      const std::string task = text(folder, "/task/", tid);
      const std::vector<std::string> of_task = stat_fields(task);
      if (of_task.empty() || of_task.front().empty()) continue;
      now.threads[tid] = {.name = line_of(task + "/comm"),
                          .state = of_task.front().front(),
                          .call = line_of(task + "/syscall")};
    }
    ::closedir(tasks);
  }
  return now;
}

bool is_ready_to_run(int pid) {
  const std::vector<std::string> fields = stat_fields(text("/proc/", pid));
  return !fields.empty() && fields.front() == "R";
}

std::vector<MemoryGroup> read_memory_groups(int pid, const std::filesystem::path& root) {
  std::vector<MemoryGroup> groups;
  for (ControlGroup& group : control_groups_of(pid, "memory", root)) groups.push_back({.group = group});
  groups = read_again(groups);
  std::erase_if(groups, [](const MemoryGroup& each) { return each.oom_kills < 0; });
  return groups;
}

std::vector<MemoryGroup> read_again(const std::vector<MemoryGroup>& groups) {
  std::vector<MemoryGroup> result;
  for (const MemoryGroup& each : groups) {
    const std::string folder = each.group.folder.string();
    const bool is_first = each.group.version == 1;
    const std::string kills = folder + (is_first ? "/memory.oom_control" : "/memory.events");
    // Events of this group only. The other file includes groups below it.
    const std::string own = folder + "/memory.events.local";
    const bool has_own = ::access(own.c_str(), R_OK) == 0;
    MemoryGroup& now = result.emplace_back(MemoryGroup{.group = each.group});
    now.oom_kills =
        ::access(kills.c_str(), R_OK) == 0 ? static_cast<std::int64_t>(value_in(kills, "oom_kill")) : -1;
    const std::string hits = line_of(folder + "/memory.failcnt");
    now.limit_hits = static_cast<std::int64_t>(is_first ? std::strtoull(hits.c_str(), nullptr, 10)
                                                        : value_in(has_own ? own : kills, "oom"));
    const std::string limit = line_of(folder + (is_first ? "/memory.limit_in_bytes" : "/memory.max"));
    now.limit_bytes = std::strtoull(limit.c_str(), nullptr, 10);  // 0 for "max"
    constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;
    if (now.limit_bytes >= kNoLimit) now.limit_bytes = 0;
  }
  return result;
}

void describe_memory(RankEvidence& rank, const std::vector<MemoryGroup>& before,
                     const std::vector<MemoryGroup>& now) {
  if (before.size() != now.size()) return;
  rank.kills_counted = false;
  rank.oom_kills = rank.group_oom_kills = 0;
  std::uint64_t smallest = 0;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i].oom_kills < 0) continue;  // the group is gone
    const std::int64_t kills = std::max<std::int64_t>(now[i].oom_kills - before[i].oom_kills, 0);
    if (!rank.kills_counted) rank.oom_kills = kills;
    rank.kills_counted = true;
    const std::uint64_t limit = now[i].limit_bytes;
    const bool is_cause = limit != 0 && rank.oom_kills > 0 && now[i].limit_hits > before[i].limit_hits;
    const bool is_smaller = limit != 0 && (smallest == 0 || limit < smallest) && rank.group_oom_kills == 0;
    if (is_smaller || (is_cause && rank.group_oom_kills == 0)) {
      smallest = limit;
      rank.group = now[i].group.folder.string();
      rank.group_limit_bytes = limit;
    }
    if (is_cause && rank.group_oom_kills == 0) rank.group_oom_kills = rank.oom_kills;
  }
}

HostReadings read_host() {
  HostReadings now{.at_s = now_s()};
  now.oom_kills = static_cast<std::int64_t>(value_in("/proc/vmstat", "oom_kill"));
  now.swapped_pages = value_in("/proc/vmstat", "pswpin") + value_in("/proc/vmstat", "pswpout");
  return now;
}

void describe_process(RankEvidence& rank, const ProcessReadings& before, const ProcessReadings& now) {
  if (now.at_s == 0) return;
  rank.state = std::string(1, now.state);
  if (const std::string frozen = frozen_group(rank.pid); !frozen.empty()) {
    rank.freezer = true;
    rank.group = frozen;
  }
  rank.swapped_bytes = now.swapped_bytes;
  if (before.at_s > 0 && now.at_s > before.at_s) {
    const double window_s = now.at_s - before.at_s;
    rank.window_s = window_s;
    rank.busy = share(now.first_cpu_s - before.first_cpu_s, window_s);
    rank.busy_all = share(now.cpu_s - before.cpu_s, window_s);
    rank.waits_for_core = share(now.first_queue_s - before.first_queue_s, window_s);
    rank.throttled = share(now.throttled_s - before.throttled_s, window_s);
    rank.major_faults_per_s = rate(before.major_faults, now.major_faults, window_s);
    rank.bytes_per_s = rate(before.bytes, now.bytes, window_s);
  }
  for (const auto& [tid, thread] : now.threads) {
    const bool first = tid == rank.pid;
    const auto earlier = before.threads.find(tid);
    // In the same call in both readings, or there is only one reading.
    const bool still =
        before.at_s == 0 || (earlier != before.threads.end() && earlier->second.call == thread.call);
    if (!still || rank.blocked.size() == kMaxBlocked) continue;
    BlockedThread blocked = describe_call(rank.pid, thread.state, thread.call);
    blocked.name = thread.name;
    blocked.state = std::string(1, thread.state);
    blocked.first = first;
    if (thread.state == 'D') blocked.kernel = line_of(text("/proc/", rank.pid, "/task/", tid, "/wchan"));
    if (first || thread.state == 'D' || !blocked.kind.empty()) rank.blocked.push_back(std::move(blocked));
  }
  rank.silent_peers = silent_peers(rank.pid);
}

HostEvidence describe_host(const HostReadings& started, const HostReadings& before, const HostReadings& now) {
  HostEvidence host{.name = host_name(), .oom_kills = now.oom_kills - started.oom_kills};
  host.cpu_pressure = pressure("cpu", "some");
  host.memory_pressure = pressure("memory", "full");
  host.io_pressure = pressure("io", "full");
  if (before.at_s > 0 && now.at_s > before.at_s)
    host.swapped_pages_per_s = rate(before.swapped_pages, now.swapped_pages, now.at_s - before.at_s);
  return host;
}

}  // namespace trireme::autopsy
