#pragma once
// Writes image files for tests, with the libraries that the project uses to read them.

#include <gtest/gtest.h>
#include <png.h>
#include <turbojpeg.h>
#include <webp/encode.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace trireme::test {

/// Rows of RGB pixels.
struct Picture {
  int height = 0, width = 0;
  std::vector<std::uint8_t> pixels;
};

/// Smooth in both directions, so that JPEG preserves it, and different in each channel.
inline Picture gradient(int height, int width, int offset = 0) {
  Picture picture{height, width, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (const int value : {x * 200 / width, y * 200 / height, (x + y) * 100 / (height + width)})
        picture.pixels.push_back(static_cast<std::uint8_t>(value + offset));
    }
  }
  return picture;
}

inline std::string png_bytes(const Picture& picture) {
  png_image writer{};
  writer.version = PNG_IMAGE_VERSION;
  writer.width = static_cast<png_uint_32>(picture.width);
  writer.height = static_cast<png_uint_32>(picture.height);
  writer.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(writer);
  std::string bytes(size, '\0');
  if (png_image_write_to_memory(&writer, bytes.data(), &size, 0, picture.pixels.data(), 0, nullptr) == 0)
    ADD_FAILURE() << writer.message;
  bytes.resize(size);
  return bytes;
}

inline std::string jpeg_bytes(const Picture& picture, TJSAMP sampling = TJSAMP_444) {
  const std::unique_ptr<void, int (*)(tjhandle)> writer(tjInitCompress(), tjDestroy);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  if (tjCompress2(writer.get(), picture.pixels.data(), picture.width, 0, picture.height, TJPF_RGB, &buffer,
                  &size, sampling, /*quality=*/98, 0) != 0)
    ADD_FAILURE() << tjGetErrorStr2(writer.get());
  std::string bytes(reinterpret_cast<char*>(buffer), size);
  tjFree(buffer);
  return bytes;
}

/// Lossless.
inline std::string webp_bytes(const Picture& picture) {
  std::uint8_t* buffer = nullptr;
  const std::size_t size =
      WebPEncodeLosslessRGB(picture.pixels.data(), picture.width, picture.height, 3 * picture.width, &buffer);
  if (size == 0) ADD_FAILURE() << "libwebp encodes nothing";
  std::string bytes(reinterpret_cast<char*>(buffer), size);
  WebPFree(buffer);
  return bytes;
}

/// The form of a BMP file: bits per pixel, whether the top row comes first, and the compression in the
/// header.
struct BmpForm {
  int bits = 24;
  bool top_first = false;
  std::uint32_t compression = 0;
};

/// With 8 bits, the pixel's red value is an index into a palette of grays.
inline std::string bmp_bytes(const Picture& picture, const BmpForm& form = {}) {
  const auto number = [](std::uint32_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  std::string extra;
  for (std::uint32_t i = 0; form.bits == 8 && i < 256; ++i) extra += number(i | i << 8 | i << 16, 4);
  if (form.compression == 3) extra = number(0xff0000, 4) + number(0xff00, 4) + number(0xff, 4);
  std::string rows;
  for (int y = 0; y < picture.height; ++y) {
    const int row = form.top_first ? y : picture.height - 1 - y;
    for (int x = 0; x < picture.width; ++x) {
      const std::uint8_t* pixel = picture.pixels.data() + 3 * (row * picture.width + x);
      if (form.bits == 8) {
        rows += static_cast<char>(pixel[0]);
        continue;
      }
      for (const int channel : {2, 1, 0}) rows += static_cast<char>(pixel[channel]);
      if (form.bits == 32) rows += '\x7f';
    }
    while (rows.size() % 4 != 0) rows += '\0';
  }
  const auto size = static_cast<std::uint32_t>(54 + extra.size());
  const auto height = static_cast<std::uint32_t>(form.top_first ? -picture.height : picture.height);
  return "BM" + number(size + static_cast<std::uint32_t>(rows.size()), 4) + number(0, 4) + number(size, 4) +
         number(40, 4) + number(static_cast<std::uint32_t>(picture.width), 4) + number(height, 4) +
         number(1, 2) + number(static_cast<std::uint32_t>(form.bits), 2) + number(form.compression, 4) +
         std::string(20, '\0') + extra + rows;
}

inline void write_image(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace trireme::test
