#include "trireme/data/internal/image_file.h"

#include <ATen/ops/empty.h>
#include <png.h>
#include <setjmp.h>
#include <turbojpeg.h>
#include <webp/decode.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/data/byte_source.h"
#include "trireme/data/internal/bmp.h"
#include "trireme/data/loading_report.h"

namespace trireme::data {
namespace {

const unsigned char* bytes_of(std::string_view content) {
  return reinterpret_cast<const unsigned char*>(content.data());
}

/// CMYK to RGB. The file's channels are inverted, the convention of Adobe and other writers: 255 is no ink.
at::Tensor without_inks(const at::Tensor& inks) {
  at::Tensor image = empty_image(inks.size(0), inks.size(1));
  const auto* in = inks.const_data_ptr<std::uint8_t>();
  auto* out = image.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < image.numel(); i += 3, in += 4) {
    for (int c = 0; c < 3; ++c) out[i + c] = static_cast<std::uint8_t>((in[c] * in[3] + 127) / 255);
  }
  return image;
}

/// Number of scans of a JPEG, counted by markers. Source: ITU-T T.81, annex B.
int scans_in(std::string_view content) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(content[at]); };
  int scans = 0;
  const auto next = [&](std::size_t at) { return content.find('\xff', at); };
  for (std::size_t at = next(2); at != content.npos && at + 4 <= content.size(); at = next(at)) {
    const unsigned char marker = byte(at + 1);
    const bool has_no_length = marker <= 0x01 || (marker >= 0xd0 && marker <= 0xd9);
    if (marker == 0xff) {
      ++at;
    } else if (has_no_length) {
      at += 2;
    } else {
      if (marker == 0xda) ++scans;
      at += 2 + (std::size_t{byte(at + 2)} << 8 | byte(at + 3));
    }
  }
  return scans;
}

at::Tensor decode_jpeg(std::string_view content, std::int64_t most_pixels) {
  const std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
  if (decoder == nullptr) throw InternalError("libjpeg-turbo cannot be started");
  const auto check = [&](int result) {
    if (result != 0) throw DataError(tjGetErrorStr2(decoder.get()));
  };
  int width = 0, height = 0, subsampling = 0, colours = 0;
  const auto size = static_cast<unsigned long>(content.size());
  check(tjDecompressHeader3(decoder.get(), bytes_of(content), size, &width, &height, &subsampling, &colours));
  check_image_size(height, width, most_pixels);
  if (const int scans = scans_in(content); scans > kMaxScans)
    throw DataError(text("it is a JPEG of ", scans, " scans, and at most ", kMaxScans, " are taken"));
  const bool has_inks = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const at::Tensor image = empty_image(height, width, has_inks ? 4 : 3);
  check(tjDecompress2(decoder.get(), bytes_of(content), size, image.data_ptr<std::uint8_t>(), width,
                      /*pitch=*/0, height, has_inks ? TJPF_CMYK : TJPF_RGB,
                      TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING));
  return has_inks ? without_inks(image) : image;
}

/// Uses libpng's low-level API: the simplified one converts gamma and blends transparent pixels with black. A
/// failing libpng call exits by longjmp. Such calls run inside `guarded`, in scopes without destructors.
class PngReader {
 public:
  PngReader(std::string_view content, std::int64_t most_pixels) : content_(content), most_pixels_(most_pixels) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, [](png_structp, png_const_charp) {});
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    if (info_ == nullptr) throw InternalError("libpng cannot be started");
    png_set_read_fn(png_, this, read);
    // Skips text, profile and similar chunks. libpng would decompress and keep a thousand of them, of 8 MB
    // each.
    static const std::string kUnread("tEXt\0zTXt\0iTXt\0iCCP\0sPLT\0eXIf\0", 30);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER,
                                reinterpret_cast<png_const_bytep>(kUnread.data()), 6);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  at::Tensor decode() {
    guarded([&] {
      png_read_info(png_, info_);
      ask_for_rgb();
    });
    const std::int64_t height = png_get_image_height(png_, info_), width = png_get_image_width(png_, info_);
    check_image_size(height, width, most_pixels_);
    check_rows(height);
    at::Tensor image = empty_image(height, width);
    auto* first = image.data_ptr<std::uint8_t>();
    guarded([&] {
      const int passes = png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
      if (png_get_rowbytes(png_, info_) != static_cast<std::size_t>(3 * width)) png_error(png_, "not RGB");
      for (int pass = 0; pass < passes; ++pass) {
        for (std::int64_t row = 0; row < height; ++row) png_read_row(png_, first + row * width * 3, nullptr);
      }
    });
    return image;
  }

 private:
  template <class Calls>
  void guarded(const Calls& calls) {
    if (setjmp(png_jmpbuf(png_)) != 0) throw DataError(message_);
    calls();
  }

  /// Rejects a height that the file is too short for, before memory is allocated. Deflate compresses at most
  /// 1032:1.
  void check_rows(std::int64_t height) const {
    constexpr std::size_t kMaxInOne = 1032;
    const std::size_t rows = static_cast<std::size_t>(height) * png_get_rowbytes(png_, info_);
    if (rows / kMaxInOne > content_.size())
      throw DataError(text("it is cut short: its ", content_.size(), " bytes cannot hold the ", height,
                           " rows that it announces"));
  }

  /// Pixel values as stored: gAMA, sRGB, iCCP and bKGD are ignored.
  void ask_for_rgb() {
    png_set_palette_to_rgb(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    png_set_gray_to_rgb(png_);
  }

  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    self->message_ = message;
    png_longjmp(png, 1);
  }

  static void read(png_structp png, png_bytep out, std::size_t size) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (size > self->content_.size() - self->position_) png_error(png, "read beyond end of data");
    std::memcpy(out, self->content_.data() + self->position_, size);
    self->position_ += size;
  }

  const std::string_view content_;
  const std::int64_t most_pixels_;
  std::size_t position_ = 0;
  std::string message_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

/// Transparency is dropped, not blended.
at::Tensor decode_webp(std::string_view content, std::int64_t most_pixels) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(content.data());
  WebPBitstreamFeatures found;
  if (WebPGetFeatures(bytes, content.size(), &found) != VP8_STATUS_OK)
    throw DataError("it begins like WebP, and is damaged or cut short");
  if (found.has_animation != 0) throw DataError("it is an animated WebP; expected a single image");
  check_image_size(found.height, found.width, most_pixels);
  at::Tensor image = empty_image(found.height, found.width);
  if (WebPDecodeRGBInto(bytes, content.size(), image.data_ptr<std::uint8_t>(), image.nbytes(),
                        3 * found.width) == nullptr)
    throw DataError("it is a WebP that is damaged or cut short");
  return image;
}

bool is_webp(std::string_view content) {
  return content.starts_with("RIFF") && content.size() >= 12 && content.substr(8, 4) == "WEBP";
}

at::Tensor decode(std::string_view content, std::int64_t most_pixels) {
  if (content.starts_with("\xff\xd8\xff")) return decode_jpeg(content, most_pixels);
  if (content.starts_with("\x89PNG\r\n\x1a\n")) return PngReader(content, most_pixels).decode();
  if (is_webp(content)) return decode_webp(content, most_pixels);
  if (content.starts_with("BM")) return decode_bmp(content, most_pixels);
  throw DataError(
      text("it is no JPEG, PNG, WebP or BMP: its ", content.size(), " bytes do not begin like one"));
}

}  // namespace

std::span<const std::string_view> image_extensions() {
  static constexpr std::array<std::string_view, 5> kExtensions = {".jpg", ".jpeg", ".png", ".webp", ".bmp"};
  return kExtensions;
}

void check_image_size(std::int64_t height, std::int64_t width, std::int64_t most_pixels) {
  if (height >= 1 && width >= 1 && height <= most_pixels / width) return;
  throw DataError(text("it is said to have ", width, "x", height, " pixels, and at most ", most_pixels,
                       " are taken; data.most_pixels is that limit"));
}

at::Tensor empty_image(std::int64_t height, std::int64_t width, std::int64_t channels) {
  return at::empty({height, width, channels}, at::kByte);
}

at::Tensor decode_image(std::string_view content, std::int64_t most_pixels) {
  const StageScope decoding(Stage::kDecode);
  return decode(content, most_pixels).permute({2, 0, 1});
}

std::string read_image_file(const std::filesystem::path& path) {
  const std::shared_ptr<const ByteSource> file = open_file(path);
  return read_text(*file, 0, file->size());
}

at::Tensor decode_image_file(std::string_view content, const std::filesystem::path& path,
                             std::int64_t most_pixels) {
  try {
    return decode_image(content, most_pixels);
  } catch (const DataError& reason) {
    throw DataError(text("cannot decode the image ", path.string(), ": ", reason.what()));
  }
}

at::Tensor read_image(const std::filesystem::path& path, std::int64_t most_pixels) {
  return decode_image_file(read_image_file(path), path, most_pixels);
}

}  // namespace trireme::data
