#include "trireme/autopsy/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

constexpr std::string_view kRecord = "oom-kill:constraint=";
// If the processes of a group are killed together, only one of them has the record above.
constexpr std::string_view kKilled = "ut of memory: Killed process ", kByGroup = "Memory cgroup o";

/// "/job" of "...,oom_memcg=/job,task_memcg=..."
std::string value_of(std::string_view record, std::string_view key) {
  const std::size_t at = record.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = record.substr(at + key.size());
  return std::string(rest.substr(0, rest.find(',')));
}

/// Whether this process is in the initial PID namespace of the kernel (PROC_PID_INIT_INO of Linux).
bool has_numbers_of_the_kernel() {
  std::array<char, 64> space{};
  return ::readlink("/proc/self/ns/pid", space.data(), space.size() - 1) > 0 &&
         std::string_view(space.data()) == "pid:[4026531836]";
}

std::optional<MemoryKill> kill_in(std::string_view line, int pid) {
  if (const std::size_t at = line.find(kRecord); at != std::string_view::npos) {
    const std::string_view record = line.substr(at);
    if (value_of(record, ",pid=") != std::to_string(pid)) return std::nullopt;
    const bool by_limit = record.substr(kRecord.size()).starts_with("CONSTRAINT_MEMCG");
    return MemoryKill{.by_limit = by_limit, .group = by_limit ? value_of(record, ",oom_memcg=") : ""};
  }
  const std::size_t at = line.find(kKilled);
  if (at == std::string_view::npos || !line.substr(at + kKilled.size()).starts_with(text(pid, " (")))
    return std::nullopt;
  return MemoryKill{.by_limit = line.find(kByGroup) != std::string_view::npos, .group = ""};
}

}  // namespace

std::optional<MemoryKill> find_memory_kill(std::string_view log, int pid) {
  std::optional<MemoryKill> found;
  for (const std::string& line : split(log, '\n')) {
    std::optional<MemoryKill> kill = kill_in(line, pid);
    if (!kill) continue;
    if (found && kill->group.empty() && kill->by_limit == found->by_limit) kill->group = found->group;
    found = std::move(kill);
  }
  return found;
}

MemoryKillLog::MemoryKillLog() {
  if (!has_numbers_of_the_kernel()) return;
  log_ = FileDescriptor(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ::lseek(log_.get(), 0, SEEK_END);
}

std::optional<std::string> MemoryKillLog::read() {
  // Each read returns one record. EPIPE means that records were overwritten since the last read.
  constexpr int kMaxRecords = 100'000;
  if (!log_.is_open()) return std::nullopt;
  std::array<char, 8192> record{};
  for (int i = 0; i < kMaxRecords; ++i) {
    const ssize_t got = ::read(log_.get(), record.data(), record.size());
    if (got < 0 && errno == EPIPE) continue;
    if (got < 0 && errno != EAGAIN) return std::nullopt;
    if (got <= 0) break;
    const std::string_view line(record.data(), static_cast<std::size_t>(got));
    const bool tells =
        line.find(kRecord) != std::string_view::npos || line.find(kKilled) != std::string_view::npos;
    if (tells) records_.append(line);
  }
  return records_;
}

}  // namespace trireme::autopsy
