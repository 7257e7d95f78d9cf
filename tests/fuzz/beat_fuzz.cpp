// What a rank tells of itself through the store, as the other ranks read it. That all ranks speak the same
// protocol is settled before: what nobody can have written is refused as an internal error.
#include "tests/fuzz/reading.h"
#include "trireme/comm/internal/beat.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(fuzz::text_in(data, size));
  comm::Beat beat;
  try {
    beat = comm::decode_beat(input);
  } catch (const InternalError&) {
    return 0;
  }
  const std::string written = comm::encode(beat);
  if (comm::encode(comm::decode_beat(written)) != written) __builtin_trap();
  return 0;
}
