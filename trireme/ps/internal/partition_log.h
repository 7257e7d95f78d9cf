#pragma once
// The records of a partition that may still have to be sent: versions without a gap, the oldest
// first. A value.

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trireme/ps/messages.h"
#include "trireme/wire/buffer.h"

namespace trireme::ps {

/// A record as it is applied, and as it is sent.
struct LogEntry {
  LogRecord record;
  std::uint32_t record_bytes = 0;  ///< 0: not encoded, the body is the values alone
  wire::Buffer body;

  static LogEntry of(LogRecord record, const std::vector<std::span<const std::byte>>& values);
  /// Of values that are in one piece: they are not copied before they are sent.
  static LogEntry of(LogRecord record, wire::Buffer values) {
    return {std::move(record), 0, std::move(values)};
  }
  struct Encoded {
    std::uint32_t record_bytes = 0;
    wire::Buffer body;
  };
  /// As it is sent.
  Encoded encoded() const;
  /// Empty when it is none.
  static std::optional<LogEntry> read(std::uint32_t record_bytes, wire::Buffer body);
  wire::Buffer values() const;
};

class PartitionLog {
 public:
  /// Nothing, after a state of this version.
  void restart(Version version) {
    entries_.clear();
    first_ = version + 1;
  }
  Version first() const { return first_; }
  Version last() const { return first_ + entries_.size() - 1; }
  const LogEntry& at(Version version) const { return entries_[version - first_]; }
  void append(LogEntry entry) { entries_.push_back(std::move(entry)); }
  /// Forgets records up to `version`.
  void trim(Version version) {
    for (; first_ <= version && !entries_.empty(); ++first_) entries_.pop_front();
  }

 private:
  Version first_ = 1;
  std::deque<LogEntry> entries_;
};

}  // namespace trireme::ps
