#pragma once
// Decoding of a file that holds one field of a sample. Stateless; thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace trireme::data {

/// By the last part of its name: jpg, jpeg, png, webp, bmp: u8 (3, height, width), of at most `most_pixels`;
/// cls: i64; npy: by internal/npy.h; json: a number, or lists of numbers that are a tensor, i64 where all are
/// whole, else f32; txt: i64, a number per byte. Throws InvalidArgument for another name, DataError with the
/// reason alone for malformed content.
at::Tensor decode_field(std::string_view field, std::string_view content, std::int64_t most_pixels);

/// Throws InvalidArgument, with the known ones, for an unknown name.
void check_field_name(std::string_view field);
bool is_image_field(std::string_view field);
bool is_class_field(std::string_view field);

}  // namespace trireme::data
