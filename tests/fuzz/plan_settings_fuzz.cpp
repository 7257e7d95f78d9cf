// A plan from `trireme plan --toml`, as `trireme train --plan` reads it.
#include "tests/fuzz/reading.h"
#include "trireme/train/planner/planned_keys.h"

using namespace trireme;

extern "C" int fuzz_plan_settings(const std::uint8_t* data, std::size_t size) {
  fuzz::is_read([&] {
    const auto settings = train::parse_settings(std::string(fuzz::text_in(data, size)), "input");
    const train::RunConfig config = train::with_settings({}, settings, "input");
    const std::string written = train::to_toml(train::planned_settings(config));
    const train::RunConfig again =
        train::with_settings({}, train::parse_settings(written, "written"), "written");
    if (train::describe(again) != train::describe(config)) __builtin_trap();
  });
  return 0;
}
