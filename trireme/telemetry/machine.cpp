#include "trireme/telemetry/machine.h"

#include <sys/utsname.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string_view>

#include "trireme/base/host.h"
#include "trireme/base/text.h"

namespace trireme::telemetry {
namespace {

/// The text after the colon of the first line that begins with `key`; empty: no such line.
std::string value_of(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (line.starts_with(key) && colon != std::string::npos) return std::string(trim(line.substr(colon + 1)));
  }
  return {};
}

/// Parses "131072 kB".
std::string memory() {
  const std::string kibibytes = value_of("/proc/meminfo", "MemTotal");
  std::istringstream in(kibibytes);
  std::uint64_t count = 0;
  return in >> count ? human_bytes(count * 1024) : std::string();
}

}  // namespace

Facts facts_of_this_machine() {
  utsname kernel{};
  const bool known = ::uname(&kernel) == 0;
  Facts facts = {{"host", known ? kernel.nodename : ""},
                 {"processor", value_of("/proc/cpuinfo", "model name")},
                 {"cores for this process", text(available_cores())},
                 {"memory", memory()},
                 {"kernel", known ? text(kernel.sysname, " ", kernel.release, " ", kernel.machine) : ""}};
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

}  // namespace trireme::telemetry
