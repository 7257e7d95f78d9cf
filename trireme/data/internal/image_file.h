#pragma once
// Decodes images: JPEG (libjpeg-turbo), PNG (libpng), WebP (libwebp) or BMP, distinguished by their first
// bytes, for any file name. Stateless; thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "trireme/data/dataset.h"

namespace trireme::data {

/// u8 (3, height, width), red, green, blue; the values of a pixel are contiguous in memory. Rows are as
/// stored: EXIF orientation is not applied. Grey images get three equal channels; of 16 bits the high byte is
/// taken; transparency is dropped, and the colours beneath it stay; gamma and profiles of a PNG are ignored;
/// the inks of a CMYK JPEG (inverted, as Adobe has them) become c * k / 255. The pixels are those of Pillow's
/// convert("RGB"), bit by bit, but for PNG of 16 grey bits, which Pillow saturates.
///
/// Throws DataError when the file is missing, of another format, animated, truncated or damaged. A warning of
/// the JPEG decoder counts as damage, because it paints over missing data. Throws DataError also for more
/// than `most_pixels`, or for a JPEG of more than kMaxScans scans. Both limits are checked before pixels are
/// decoded. The message names the path and the decoder's reason.
at::Tensor read_image(const std::filesystem::path& path, std::int64_t most_pixels = kMaxPixels);

/// Each scan of a JPEG costs as much as all pixels. Encoders write 1 to 12.
inline constexpr int kMaxScans = 64;

/// The two halves of it: the bytes, and their decoded image.
std::string read_image_file(const std::filesystem::path& path);
at::Tensor decode_image_file(std::string_view content, const std::filesystem::path& path,
                             std::int64_t most_pixels = kMaxPixels);

/// The same of a file's content; the message of its exception is the reason alone.
at::Tensor decode_image(std::string_view content, std::int64_t most_pixels = kMaxPixels);

/// Extensions of files that are read, in lower case: ".jpg" and so on.
std::span<const std::string_view> image_extensions();

/// For decoders. Throws DataError for no pixels, or more than `most_pixels`.
void check_image_size(std::int64_t height, std::int64_t width, std::int64_t most_pixels);
/// u8 (height, width, channels), without values.
at::Tensor empty_image(std::int64_t height, std::int64_t width, std::int64_t channels = 3);

}  // namespace trireme::data
