#include "trireme/data/internal/image_file.h"

#include <ATen/ops/empty.h>
#include <png.h>
#include <turbojpeg.h>

#include <memory>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

const unsigned char* bytes_of(const std::string& content) {
  return reinterpret_cast<const unsigned char*>(content.data());
}

/// (height, width, 3), for a decoder to write into.
at::Tensor pixels(std::int64_t height, std::int64_t width) {
  if (height < 1 || width < 1 || height > kMostPixels / width) {
    throw DataError(
        text("it is said to have ", width, "x", height, " pixels, and at most ", kMostPixels, " are taken"));
  }
  return at::empty({height, width, 3}, at::kByte);
}

at::Tensor decode_jpeg(const std::string& content) {
  const std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
  if (decoder == nullptr) throw InternalError("libjpeg-turbo cannot be started");
  const auto check = [&](int result) {
    if (result != 0) throw DataError(tjGetErrorStr2(decoder.get()));
  };
  int width = 0, height = 0, subsampling = 0, colours = 0;
  const auto size = static_cast<unsigned long>(content.size());
  check(tjDecompressHeader3(decoder.get(), bytes_of(content), size, &width, &height, &subsampling, &colours));
  at::Tensor image = pixels(height, width);
  check(tjDecompress2(decoder.get(), bytes_of(content), size, image.data_ptr<std::uint8_t>(), width,
                      /*pitch=*/0, height, TJPF_RGB, TJFLAG_ACCURATEDCT));
  return image;
}

at::Tensor decode_png(const std::string& content) {
  png_image reader{};
  reader.version = PNG_IMAGE_VERSION;
  const auto check = [&](int result) {
    const std::string message = reader.message;
    if (result != 0) return;
    png_image_free(&reader);
    throw DataError(message);
  };
  check(png_image_begin_read_from_memory(&reader, content.data(), content.size()));
  const std::unique_ptr<png_image, void (*)(png_image*)> cleanup(&reader, png_image_free);
  reader.format = PNG_FORMAT_RGB;
  at::Tensor image = pixels(reader.height, reader.width);
  png_color black{};  // behind what is transparent
  check(png_image_finish_read(&reader, &black, image.data_ptr<std::uint8_t>(), /*row_stride=*/0, nullptr));
  return image;
}

at::Tensor decode(const std::string& content) {
  if (content.starts_with("\xff\xd8\xff")) return decode_jpeg(content);
  if (content.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(content);
  throw DataError(text("it is neither JPEG nor PNG: its ", content.size(), " bytes do not begin like one"));
}

}  // namespace

at::Tensor read_image(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  try {
    return decode(content).permute({2, 0, 1}).contiguous();
  } catch (const DataError& reason) {
    throw DataError(text("cannot decode the image ", path.string(), ": ", reason.what()));
  }
}

}  // namespace trireme::data
