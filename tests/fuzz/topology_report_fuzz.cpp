// The output of `trireme topology --json`, parsed again.
#include "cli/topology/report.h"
#include "tests/fuzz/reading.h"

using namespace trireme;

extern "C" int fuzz_topology_report(const std::uint8_t* data, std::size_t size) {
  fuzz::is_read([&] {
    const cli::TopologyReport report = cli::parse_topology(std::string(fuzz::text_in(data, size)), "input");
    const std::string written = cli::to_json(report);
    if (cli::to_json(cli::parse_topology(written, "written")) != written) __builtin_trap();
  });
  return 0;
}
