#include "trireme/base/log.h"

#include <unistd.h>

#include "trireme/base/printable.h"

namespace trireme {

void Log::write_line(LogLevel level, const std::string& message) const {
  const char* mark = level == LogLevel::kWarning ? "warning: " : level == LogLevel::kError ? "error: " : "";
  const std::string line = who_ + ": " + mark + printable_message(message) + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace trireme
