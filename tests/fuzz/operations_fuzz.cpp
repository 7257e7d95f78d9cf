// The operations that a rank publishes, as the other ranks parse them and compare them with their own.
#include "tests/fuzz/reading.h"
#include "trireme/comm/internal/operation_report.h"

using namespace trireme;

extern "C" int fuzz_operations(const std::uint8_t* data, std::size_t size) {
  const auto operations = comm::decode_operations(std::string(fuzz::text_in(data, size)), 3);
  if (!operations) return 0;
  const std::string written = comm::encode_operations(*operations);
  if (comm::encode_operations(comm::decode_operations(written, 3).value()) != written) __builtin_trap();
  const comm::Operation mine;  // of rank 0, in a group of the world ranks 4, 5 and 6
  const comm::Published published = {{1, *operations}, {2, {}}};
  comm::find_disagreement(mine, 0, {4, 5, 6}, published);
  comm::missing_ranks(mine, 0, {4, 5, 6}, published);
  comm::has_finished(mine, 0, *operations);
  return 0;
}
