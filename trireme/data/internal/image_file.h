#pragma once
// Decodes images: JPEG (libjpeg-turbo) or PNG (libpng), told apart by their first bytes, whatever the
// file is called. Stateless; thread-safe.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::data {

/// u8 (3, height, width), red, green, blue, those of a pixel next to each other in memory, in the rows that
/// are stored: EXIF orientation is not applied. Grey images get three equal channels; of 16 bits the high
/// byte is taken; transparency is dropped, whatever lies beneath it stays; what a PNG says of gamma and
/// profiles changes nothing; the inks of a CMYK JPEG (inverted, as Adobe has them) become c * k / 255. The
/// pixels are those of Pillow's convert("RGB"), bit by bit, but for PNG of 16 grey bits, which Pillow
/// saturates. Throws DataError when the file is missing, neither JPEG nor PNG, truncated or damaged (of JPEG,
/// whose decoder paints over missing data, a warning counts as damage), or has more than 2^28 pixels; the
/// message names the path and the decoder's reason.
at::Tensor read_image(const std::filesystem::path& path);

/// The two halves of it: the bytes, and what they decode to.
std::string read_image_file(const std::filesystem::path& path);
at::Tensor decode_image_file(std::string_view content, const std::filesystem::path& path);

/// The same of a file's content; the message of what it throws is the reason alone.
at::Tensor decode_image(std::string_view content);

}  // namespace trireme::data
