#pragma once
// Images as Windows bitmaps (BMP), uncompressed: 8 bits with a palette, 24 and 32 bits. Stateless. Source:
// "Bitmap Storage" and BITMAPINFOHEADER, Microsoft's documentation of Windows GDI.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace trireme::data {

/// u8 (height, width, 3), red, green, blue, the top row first; the fourth byte of 32 bits is dropped. Throws
/// DataError with the reason alone: another compression or number of bits, a size that the bytes cannot hold,
/// more than `most_pixels`, a pixel beyond the palette.
at::Tensor decode_bmp(std::string_view content, std::int64_t most_pixels);

}  // namespace trireme::data
