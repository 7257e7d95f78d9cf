#include "trireme/data/internal/idx_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

/// A file read through zlib, which passes plain files through unchanged.
class GzipReader {
 public:
  explicit GzipReader(const std::filesystem::path& path) : path_(path), file_(::gzopen(path.c_str(), "rb")) {
    if (!file_) throw DataError(text("cannot open ", path.string(), ": ", std::strerror(errno)));
    ::gzbuffer(file_.get(), 1 << 17);
  }

  /// Number of bytes read. It is less than the span's size only at the end of the file.
  std::size_t read(std::span<std::uint8_t> target) {
    constexpr std::size_t kMaxAtOnce = 1U << 30;
    std::size_t done = 0;
    while (done < target.size()) {
      const auto wanted = static_cast<unsigned>(std::min(target.size() - done, kMaxAtOnce));
      const int got = ::gzread(file_.get(), target.data() + done, wanted);
      check(got);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  bool plain() const { return ::gzdirect(file_.get()) == 1; }

 private:
  struct Close {
    void operator()(gzFile file) const { ::gzclose(file); }
  };

  void check(int got) const {
    int code = Z_OK;
    const char* reason = ::gzerror(file_.get(), &code);
    if (got >= 0 && (code == Z_OK || code == Z_STREAM_END)) return;
    if (code == Z_ERRNO) reason = std::strerror(errno);
    // zlib reports a compressed stream that ends too early as Z_BUF_ERROR.
    if (code == Z_BUF_ERROR) reason = "the compressed data end too early (truncated file)";
    throw DataError(text("cannot read ", path_.string(), ": ", reason, "; fetch the file again"));
  }

  std::filesystem::path path_;
  std::unique_ptr<std::remove_pointer_t<gzFile>, Close> file_;
};

std::string hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result;
  for (const std::uint8_t byte : bytes) {
    if (!result.empty()) result += ' ';
    result += kDigits[byte >> 4];
    result += kDigits[byte & 15];
  }
  return result;
}

void check_magic(const std::filesystem::path& path, std::span<const std::uint8_t> magic,
                 std::size_t num_dims) {
  const std::array<std::uint8_t, 4> expected = {0, 0, 8, static_cast<std::uint8_t>(num_dims)};
  if (magic.size() == 4 && std::memcmp(magic.data(), expected.data(), 4) == 0) return;
  throw DataError(text(path.string(), " is not an idx file of unsigned bytes with ", num_dims,
                       " dims: expected it to begin with ", hex(expected), ", found ", hex(magic)));
}

/// Upper bound for the number of values that a header may announce. gzip compresses at most 1032:1; images
/// compress 2:1 to 10:1. Data with a ratio above 64:1 are limited to 64 MiB.
std::size_t max_values(const std::filesystem::path& path, bool plain) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) throw DataError(text("cannot read the size of ", path.string(), ": ", error.message()));
  constexpr std::uintmax_t kMaxRatio = 64, kFreeBytes = std::uintmax_t{64} << 20;
  return plain ? bytes : std::max(bytes * kMaxRatio, std::min(bytes * 1032, kFreeBytes));
}

std::size_t read_dims(const std::filesystem::path& path, GzipReader& reader, IdxFile& file) {
  std::size_t count = 1;
  for (std::int64_t& dim : file.dims) {
    std::array<std::uint8_t, 4> bytes;
    if (reader.read(bytes) != 4)
      throw DataError(text(path.string(), " ends within its header; fetch it again"));
    dim = (std::int64_t{bytes[0]} << 24) | (bytes[1] << 16) | (bytes[2] << 8) | bytes[3];
    if (__builtin_mul_overflow(count, static_cast<std::size_t>(dim), &count))
      throw DataError(text(path.string(), " is truncated: its header announces too many values to be true"));
  }
  const std::size_t most = max_values(path, reader.plain());
  if (count > most) {
    throw DataError(text(path.string(), " is truncated, or no data set: its header announces ", count,
                         " values, and at most ", most, " are read from a file of its size; fetch it again"));
  }
  return count;
}

/// Reads `count` values. Memory grows with the data that arrive.
std::vector<std::uint8_t> read_values(GzipReader& reader, std::size_t count) {
  constexpr std::size_t kFirst = std::size_t{64} << 20;
  std::vector<std::uint8_t> values;
  while (values.size() < count) {
    const std::size_t had = values.size();
    values.reserve(std::min(count, std::max(kFirst, 2 * had)));
    values.resize(std::min(count, had + kFirst));
    const std::size_t got = reader.read(std::span(values).subspan(had));
    if (had + got == values.size()) continue;
    values.resize(had + got);
    break;
  }
  return values;
}

}  // namespace

IdxFile read_idx(const std::filesystem::path& path, std::size_t num_dims) {
  GzipReader reader(path);
  std::array<std::uint8_t, 4> magic;
  const std::size_t got = reader.read(magic);
  check_magic(path, std::span(magic).first(got), num_dims);
  IdxFile file;
  file.dims.resize(num_dims);
  const std::size_t count = read_dims(path, reader, file);
  file.values = read_values(reader, count);
  const std::size_t found = file.values.size();
  if (found != count) {
    throw DataError(text(path.string(), " is truncated: its header announces ", count, " values, it holds ",
                         found, "; fetch it again"));
  }
  std::array<std::uint8_t, 1> rest;
  if (reader.read(rest) != 0) {
    throw DataError(
        text(path.string(), " has more bytes after the ", count, " values that its header announces"));
  }
  return file;
}

}  // namespace trireme::data
