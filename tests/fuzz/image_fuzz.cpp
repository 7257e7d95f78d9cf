// An image file: decoded, or refused. A JPEG or WebP may announce 2^28 pixels in a few bytes and be right
// about them (arithmetic coding, one colour); those of more than 2^22 are left out, since decoding one takes
// seconds.
#include <turbojpeg.h>
#include <webp/decode.h>

#include "tests/fuzz/reading.h"
#include "trireme/data/internal/image_file.h"

using namespace trireme;

namespace {

bool is_large(const std::uint8_t* bytes, std::size_t size) {
  static const tjhandle reader = tjInitDecompress();
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (WebPGetInfo(bytes, size, &width, &height) == 0)
    tjDecompressHeader3(reader, bytes, size, &width, &height, &subsampling, &colours);
  return std::int64_t{width} * height > std::int64_t{1} << 22;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0 || is_large(bytes, size)) return 0;
  fuzz::is_read([&] { data::decode_image(fuzz::text_in(bytes, size)); });
  return 0;
}
