// The status that a rank publishes in the store, as the other ranks parse it.
#include "tests/fuzz/reading.h"
#include "trireme/comm/internal/heartbeat.h"

using namespace trireme;

extern "C" int fuzz_beat(const std::uint8_t* data, std::size_t size) {
  const auto beat = comm::decode_heartbeat(std::string(fuzz::text_in(data, size)));
  if (!beat) return 0;
  const std::string written = comm::encode(*beat);
  if (comm::encode(comm::decode_heartbeat(written).value()) != written) __builtin_trap();
  return 0;
}
