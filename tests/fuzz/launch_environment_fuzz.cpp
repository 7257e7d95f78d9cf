// The environment variables that launchers set, one per line: NAME=VALUE.
#include <map>

#include "tests/fuzz/reading.h"
#include "trireme/comm/launch_environment.h"

using namespace trireme;

extern "C" int fuzz_launch_environment(const std::uint8_t* data, std::size_t size) {
  std::map<std::string, std::string> variables;
  for (const std::string& line : split(std::string(fuzz::text_in(data, size)), '\n')) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  // The file that this variable names depends on the host, not on the input.
  variables.erase("TRIREME_SECRET_FILE");
  comm::LaunchEnvironment found;
  const bool read = fuzz::is_read([&] {
    found = comm::read_launch_environment([&](const std::string& name) -> std::optional<std::string> {
      const auto variable = variables.find(name);
      return variable == variables.end() ? std::nullopt : std::optional(variable->second);
    });
  });
  if (!read) return 0;
  const bool sound = found.rank >= 0 && found.rank < found.world_size && found.local_rank >= 0 &&
                     found.local_rank < found.local_world_size &&
                     found.local_world_size <= found.world_size && found.master_port > 0 &&
                     found.master_port <= 65535;
  if (!sound) __builtin_trap();
  return 0;
}
