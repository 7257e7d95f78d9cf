#pragma once
// Writes image files for tests, with the libraries that the project reads them with.

#include <gtest/gtest.h>
#include <png.h>
#include <turbojpeg.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace trireme::test {

/// Rows of pixels of red, green and blue.
struct Picture {
  int height = 0, width = 0;
  std::vector<std::uint8_t> pixels;
};

/// Smooth in both directions, so that JPEG keeps it, and different in each channel.
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

inline void write_image(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace trireme::test
