// An image file: decoded, or rejected. A few bytes may announce very many pixels and be right about them
// (arithmetic coding, one colour): the limit is lower here than that of data sets, since decoding 2^26 pixels
// takes a second.
#include "tests/fuzz/reading.h"
#include "trireme/data/internal/image_file.h"

using namespace trireme;

extern "C" int fuzz_image(const std::uint8_t* bytes, std::size_t size) {
  fuzz::is_read([&] { data::decode_image(fuzz::text_in(bytes, size), std::int64_t{1} << 20); });
  return 0;
}
