#include "trireme/base/unix_time.h"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

#include "trireme/base/clock.h"

namespace trireme {
namespace {

constexpr int kStartField = 22 - 3;  // field of /proc/self/stat, counted after the name; proc(5)

/// Seconds from boot to the start of this process; negative if the kernel does not report it.
double began_after_boot_s() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));  // a name may contain spaces and brackets
  std::string field;
  double ticks = -1;
  for (int skipped = 0; skipped < kStartField; ++skipped) fields >> field;
  fields >> ticks;
  return fields ? ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)) : -1;
}

}  // namespace

double unix_now_s() { return Seconds(std::chrono::system_clock::now().time_since_epoch()).count(); }

double process_began_unix_s() {
  const double began_s = began_after_boot_s();
  timespec since_boot{};
  if (began_s < 0 || ::clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return unix_now_s();
  const double now_since_boot_s =
      static_cast<double>(since_boot.tv_sec) + static_cast<double>(since_boot.tv_nsec) * 1e-9;
  return unix_now_s() - (now_since_boot_s - began_s);
}

}  // namespace trireme
