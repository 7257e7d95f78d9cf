#include "trireme/data/internal/bmp.h"

#include <cstdint>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/data/internal/image_file.h"

namespace trireme::data {
namespace {

constexpr std::size_t kFileHeaderBytes = 14, kInfoHeaderBytes = 40;
constexpr std::uint32_t kUncompressed = 0, kMasks = 3;

/// Little-endian numbers at offsets of the file.
class BmpBytes {
 public:
  explicit BmpBytes(std::string_view content) : content_(content) {}

  std::uint32_t u32(std::size_t at) const { return u16(at) | std::uint32_t{u16(at + 2)} << 16; }
  std::uint16_t u16(std::size_t at) const {
    const std::string_view bytes = range(at, 2);
    return static_cast<std::uint16_t>(static_cast<unsigned char>(bytes[0]) |
                                      static_cast<unsigned char>(bytes[1]) << 8);
  }
  std::string_view range(std::size_t at, std::size_t size) const {
    if (at > content_.size() || size > content_.size() - at)
      throw DataError(
          text("it is cut short: ", at + size, " bytes are needed, ", content_.size(), " are there"));
    return content_.substr(at, size);
  }

 private:
  std::string_view content_;
};

/// Contents of the headers.
struct BmpLayout {
  std::int64_t height = 0, width = 0;
  bool top_first = false;
  std::size_t bytes_per_pixel = 3, row_bytes = 0;
  std::size_t pixels_at = 0, palette_at = 0, colours = 0;
};

/// Whether the masks of 32-bit pixels give the order blue, green, red, as without masks.
bool has_usual_masks(const BmpBytes& bytes) {
  constexpr std::size_t kMasksAt = kFileHeaderBytes + kInfoHeaderBytes;
  return bytes.u32(kMasksAt) == 0xff0000 && bytes.u32(kMasksAt + 4) == 0xff00 &&
         bytes.u32(kMasksAt + 8) == 0xff;
}

BmpLayout layout_in(const BmpBytes& bytes, std::int64_t most_pixels) {
  const std::uint32_t header_bytes = bytes.u32(kFileHeaderBytes);
  if (header_bytes < kInfoHeaderBytes || header_bytes > 1024)
    throw DataError(text("it is a BMP with a header of ", header_bytes, " bytes; expected 40 or more"));
  const auto width = static_cast<std::int32_t>(bytes.u32(kFileHeaderBytes + 4));
  const auto height = static_cast<std::int32_t>(bytes.u32(kFileHeaderBytes + 8));
  const std::uint16_t bits = bytes.u16(kFileHeaderBytes + 14);
  const std::uint32_t compression = bytes.u32(kFileHeaderBytes + 16);
  const bool known = (compression == kUncompressed && (bits == 8 || bits == 24 || bits == 32)) ||
                     (compression == kMasks && bits == 32 && has_usual_masks(bytes));
  if (!known)
    throw DataError(text("it is a BMP of ", bits, " bits with compression ", compression,
                         "; read are 8 (palette), 24 and 32 bits without compression"));
  BmpLayout layout{.height = std::int64_t{height} < 0 ? -std::int64_t{height} : height,
                   .width = width,
                   .top_first = height < 0,
                   .bytes_per_pixel = bits / std::size_t{8},
                   .pixels_at = bytes.u32(10)};
  check_image_size(layout.height, layout.width, most_pixels);
  layout.row_bytes = (static_cast<std::size_t>(layout.width) * layout.bytes_per_pixel + 3) / 4 * 4;
  if (bits == 8) {
    const std::uint32_t colours = bytes.u32(kFileHeaderBytes + 32);
    layout.palette_at = kFileHeaderBytes + header_bytes;
    layout.colours = colours == 0 || colours > 256 ? 256 : colours;
  }
  return layout;
}

void convert_row(std::string_view row, const BmpLayout& layout, std::string_view palette, std::uint8_t* out) {
  for (std::int64_t x = 0; x < layout.width; ++x, out += 3) {
    const char* pixel = row.data() + static_cast<std::size_t>(x) * layout.bytes_per_pixel;
    if (layout.bytes_per_pixel == 1) {
      const std::size_t colour = static_cast<unsigned char>(*pixel);
      if (colour >= layout.colours)
        throw DataError(text("a pixel has colour ", colour, " of a palette of ", layout.colours));
      pixel = palette.data() + 4 * colour;
    }
    for (int channel = 0; channel < 3; ++channel)
      out[channel] = static_cast<std::uint8_t>(pixel[2 - channel]);
  }
}

}  // namespace

at::Tensor decode_bmp(std::string_view content, std::int64_t most_pixels) {
  const BmpBytes bytes(content);
  const BmpLayout layout = layout_in(bytes, most_pixels);
  const std::string_view palette = bytes.range(layout.palette_at, 4 * layout.colours);
  const auto height = static_cast<std::size_t>(layout.height);
  const std::string_view rows = bytes.range(layout.pixels_at, height * layout.row_bytes);
  at::Tensor image = empty_image(layout.height, layout.width);
  auto* out = image.data_ptr<std::uint8_t>();
  for (std::size_t y = 0; y < height; ++y) {
    const std::size_t row = layout.top_first ? y : height - 1 - y;
    convert_row(rows.substr(row * layout.row_bytes, layout.row_bytes), layout, palette,
                out + y * static_cast<std::size_t>(layout.width) * 3);
  }
  return image;
}

}  // namespace trireme::data
