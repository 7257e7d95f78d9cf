// An image file, which is decoded or rejected. With arithmetic coding and one color, a few bytes can
// correctly announce very many pixels. Decoding 2^26 pixels takes a second, so the limit here is lower than
// that of data sets.
#include "tests/fuzz/reading.h"
#include "trireme/data/internal/image_file.h"

using namespace trireme;

extern "C" int fuzz_image(const std::uint8_t* bytes, std::size_t size) {
  fuzz::is_read([&] { data::decode_image(fuzz::text_in(bytes, size), std::int64_t{1} << 20); });
  return 0;
}
