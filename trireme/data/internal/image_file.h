#pragma once
// Decodes one image file: JPEG (libjpeg-turbo) or PNG (libpng), told apart by their first bytes, whatever the
// file is called. Stateless; thread-safe.

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace trireme::data {

/// u8 (3, height, width), red, green, blue; grey images get three equal channels, transparency is dropped.
/// Throws DataError when the file is missing, neither JPEG nor PNG, truncated or damaged (of JPEG, whose
/// decoder paints over missing data, a warning counts as damage), or has more than 2^28 pixels; the message
/// names the path and the decoder's reason.
at::Tensor read_image(const std::filesystem::path& path);

}  // namespace trireme::data
