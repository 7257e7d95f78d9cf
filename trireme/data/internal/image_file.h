#pragma once
// Decodes images: JPEG (libjpeg-turbo), PNG (libpng), WebP (libwebp) or BMP, told apart by their first bytes,
// whatever the file is called. Stateless; thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace trireme::data {

/// u8 (3, height, width), red, green, blue, those of a pixel next to each other in memory, in the rows that
/// are stored: EXIF orientation is not applied. Grey images get three equal channels; of 16 bits the high
/// byte is taken; transparency is dropped, whatever lies beneath it stays; what a PNG says of gamma and
/// profiles changes nothing; the inks of a CMYK JPEG (inverted, as Adobe has them) become c * k / 255. The
/// pixels are those of Pillow's convert("RGB"), bit by bit, but for PNG of 16 grey bits, which Pillow
/// saturates. Throws DataError when the file is missing, of another format, animated, truncated or damaged
/// (of JPEG, whose decoder paints over missing data, a warning counts as damage), or has more than 2^28
/// pixels; the message names the path and the decoder's reason.
at::Tensor read_image(const std::filesystem::path& path);

/// The two halves of it: the bytes, and what they decode to.
std::string read_image_file(const std::filesystem::path& path);
at::Tensor decode_image_file(std::string_view content, const std::filesystem::path& path);

/// The same of a file's content; the message of what it throws is the reason alone.
at::Tensor decode_image(std::string_view content);

/// Extensions of files that are read, in lower case: ".jpg" and so on.
std::span<const std::string_view> image_extensions();

/// For decoders. Throws DataError for no pixels, or more than 2^28.
void check_image_size(std::int64_t height, std::int64_t width);
/// u8 (height, width, channels), without values; checked.
at::Tensor empty_image(std::int64_t height, std::int64_t width, std::int64_t channels = 3);

}  // namespace trireme::data
