// A run's configuration: a TOML document, then, after a byte 0x1f each, values of --set.
#include "tests/fuzz/reading.h"
#include "trireme/train/config/run_config.h"

using namespace trireme;

extern "C" int fuzz_config(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of(fuzz::text_in(data, size), 4);
  const auto file = folder.put("config.toml", parts.front());
  const std::vector<std::string> overrides(parts.begin() + 1, parts.end());
  fuzz::is_read([&] {
    const train::RunConfig config = train::load_run_config(file, overrides);
    const std::string written = train::describe(config);
    if (train::describe(train::parse_run_config(written, "written")) != written) __builtin_trap();
  });
  return 0;
}
