// A JPEG or PNG file: decoded, or refused. A JPEG may announce 2^28 pixels in a few bytes and be right about
// them (arithmetic coding); those of more than 2^22 are left out, since decoding one takes seconds.
#include <turbojpeg.h>

#include "tests/fuzz/reading.h"
#include "trireme/data/internal/image_file.h"

using namespace trireme;

namespace {

bool is_large_jpeg(const std::uint8_t* bytes, std::size_t size) {
  static const tjhandle reader = tjInitDecompress();
  int width = 0, height = 0, subsampling = 0, colours = 0;
  tjDecompressHeader3(reader, bytes, size, &width, &height, &subsampling, &colours);
  return std::int64_t{width} * height > std::int64_t{1} << 22;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0 || is_large_jpeg(bytes, size)) return 0;
  fuzz::is_read([&] { data::decode_image(fuzz::text_in(bytes, size)); });
  return 0;
}
