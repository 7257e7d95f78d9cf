#include "trireme/autopsy/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "trireme/base/file_descriptor.h"
#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

constexpr std::string_view kRecord = "oom-kill:constraint=";

/// "/job" of "...,oom_memcg=/job,task_memcg=..."
std::string value_of(std::string_view record, std::string_view key) {
  const std::size_t at = record.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = record.substr(at + key.size());
  return std::string(rest.substr(0, rest.find(',')));
}

}  // namespace

std::optional<MemoryKill> find_memory_kill(std::string_view log, int pid) {
  std::optional<MemoryKill> found;
  for (std::size_t at = log.find(kRecord); at != std::string_view::npos; at = log.find(kRecord, at + 1)) {
    const std::string_view record = log.substr(at, log.find('\n', at) - at);
    if (value_of(record, ",pid=") != std::to_string(pid)) continue;
    const bool is_of_group = record.substr(kRecord.size()).starts_with("CONSTRAINT_MEMCG");
    found = MemoryKill{is_of_group ? value_of(record, ",oom_memcg=") : ""};
  }
  return found;
}

std::optional<std::string> read_memory_kills() {
  // One read is one record; that records were overwritten meanwhile the next read tells by EPIPE.
  constexpr int kMostRecords = 100'000;
  const FileDescriptor log(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log.is_open()) return std::nullopt;
  std::string records;
  std::array<char, 8192> record{};
  for (int i = 0; i < kMostRecords; ++i) {
    const ssize_t got = ::read(log.get(), record.data(), record.size());
    if (got < 0 && errno == EPIPE) continue;
    if (got < 0 && errno != EAGAIN) return std::nullopt;
    if (got <= 0) break;
    const std::string_view line(record.data(), static_cast<std::size_t>(got));
    if (line.find(kRecord) != std::string_view::npos) records.append(line);
  }
  return records;
}

}  // namespace trireme::autopsy
