// An idx file, plain or compressed with gzip. The first byte is the number of dimensions that the reader
// expects.
#include "tests/fuzz/reading.h"
#include "trireme/data/internal/idx_file.h"

using namespace trireme;

extern "C" int fuzz_idx(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  if (size == 0) return 0;
  const auto file = folder.put("images-idx", fuzz::text_in(data + 1, size - 1));
  fuzz::is_read([&] { trireme::data::read_idx(file, data[0] % 8); });
  return 0;
}
