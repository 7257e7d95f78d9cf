// Messages between a client of the store and its server.
#include "tests/fuzz/reading.h"
#include "trireme/wire/internal/store_protocol.h"

using namespace trireme;

extern "C" int fuzz_store_protocol(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_in(data, size);
  wire::store::decode_hello(input);
  wire::store::decode_answer(input);
  wire::store::decode_verdict(input);
  if (const auto request = wire::store::decode_request(input)) {
    const std::string again = wire::store::encode(*request).substr(wire::store::kLengthBytes);
    if (again != input) __builtin_trap();
  }
  if (const auto reply = wire::store::decode_reply(input)) {
    const std::string again = wire::store::encode(*reply).substr(wire::store::kLengthBytes);
    if (again != input) __builtin_trap();
  }
  // No fuzz input can be a frame that was sealed with the secret.
  const wire::Secret secret = wire::Secret::from_text("the secret of this target", "a target");
  if (wire::store::Session(secret, wire::store::Side::kServer, {}, {}).open(input)) __builtin_trap();
  return 0;
}
