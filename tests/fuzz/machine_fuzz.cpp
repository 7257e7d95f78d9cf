// The description of a machine: a TOML document.
#include "tests/fuzz/reading.h"
#include "trireme/train/machine/machine.h"

using namespace trireme;

extern "C" int fuzz_machine(const std::uint8_t* data, std::size_t size) {
  fuzz::is_read([&] { train::parse_machine(std::string(fuzz::text_in(data, size)), "machine.toml"); });
  return 0;
}
