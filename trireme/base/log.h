#pragma once
// Log lines for people, on standard error: "trireme[rank 1] warning: ...". A Log is a value that is passed
// along (Context::log()), so two ranks in one process have one each. Each line is one write: lines of
// several threads and processes do not mix. Thread-safe.

#include <string>

#include "trireme/base/text.h"

namespace trireme {

/// From the least to the most important; a Log drops lines below its own level.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

class Log {
 public:
  explicit Log(std::string who = "trireme", LogLevel least = LogLevel::kInfo)
      : who_(std::move(who)), least_(least) {}

  /// One line of that level, made of the parts joined as text; nothing is formatted when the level is
  /// dropped.
  template <class... Parts>
  void debug(const Parts&... parts) const {
    write(LogLevel::kDebug, parts...);
  }
  template <class... Parts>
  void info(const Parts&... parts) const {
    write(LogLevel::kInfo, parts...);
  }
  template <class... Parts>
  void warning(const Parts&... parts) const {
    write(LogLevel::kWarning, parts...);
  }
  template <class... Parts>
  void error(const Parts&... parts) const {
    write(LogLevel::kError, parts...);
  }

 private:
  template <class... Parts>
  void write(LogLevel level, const Parts&... parts) const {
    if (level >= least_) write_line(level, text(parts...));
  }
  void write_line(LogLevel level, const std::string& message) const;

  std::string who_;
  LogLevel least_;
};

}  // namespace trireme
