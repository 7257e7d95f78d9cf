#include "trireme/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "trireme/base/disk_use.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/open_file.h"
#include "trireme/base/printable.h"
#include "trireme/base/synced_file.h"
#include "trireme/checkpoint/internal/dtype.h"
#include "trireme/checkpoint/internal/safetensors_header.h"
#include "trireme/checkpoint/internal/synced_safetensors.h"
#include "trireme/checkpoint/internal/tensor_bytes.h"
#include "trireme/checkpoint/internal/xxh3.h"

namespace trireme::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data are written as they lie in memory");

/// The tensor as it is written: row-major, on the CPU. Copies only if necessary.
at::Tensor plain(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
}

/// Size of the pieces that are written and hashed. They stay in the cache between the two.
constexpr std::size_t kPiece = std::size_t{1} << 20;

/// Reads a file sequentially, and hashes it.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), descriptor_(open_to_read(path)) {
    std::error_code error;
    size_ = std::filesystem::file_size(path, error);
    if (error || !descriptor_.is_open()) {
      const std::string reason = error ? error.message() : std::strerror(errno);
      throw DataError(text("cannot open ", path.string(), ": ", reason));
    }
    ::posix_fadvise(descriptor_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }

  std::uint64_t size() const { return size_; }
  std::uint64_t position() const { return position_; }

  /// The next `count` bytes.
  void read(void* target, std::size_t count) {
    auto* next = static_cast<std::byte*>(target);
    for (std::size_t left = count; left > 0;) {
      const ssize_t got = ::read(descriptor_.get(), next, std::min(left, kPiece));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        throw DataError(text("cannot read ", left, " bytes at ", position_, " of ", path_.string(), ": ",
                             got < 0 ? std::strerror(errno) : "the file ends there"));
      }
      const auto size = static_cast<std::size_t>(got);
      count_disk_read(DiskUse::kCheckpoints, size);
      hash_.add(std::span(next, size));
      next += size;
      left -= size;
      position_ += size;
    }
  }

  FileDigest digest() const { return {.bytes = position_, .xxh3 = hash_.hex()}; }

 private:
  const std::filesystem::path& path_;
  FileDescriptor descriptor_;
  std::uint64_t size_ = 0, position_ = 0;
  Xxh3 hash_;
};

/// Length of the JSON header, checked against the file.
std::uint64_t header_length(Reader& reader, const std::string& file) {
  if (reader.size() < 8) {
    throw DataError(text(file, " is not a safetensors file: it has only ", reader.size(), " bytes"));
  }
  std::array<unsigned char, 8> bytes;
  reader.read(bytes.data(), bytes.size());
  std::uint64_t length = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) length = (length << 8) | bytes[i];
  if (length > kMaxHeaderBytes || length > reader.size() - 8) {
    throw DataError(text(file, " is not a valid safetensors file: it announces a header of ", length,
                         " bytes and has ", reader.size(), " in all (foreign or truncated)"));
  }
  return length;
}

SafetensorsHeader read_header(Reader& reader, const std::string& file) {
  const std::uint64_t length = header_length(reader, file);
  std::string json(static_cast<std::size_t>(length), '\0');
  reader.read(json.data(), json.size());
  return parse_header(json, reader.size() - sizeof length - length, file);
}

void check_bools(const at::Tensor& tensor, const std::string& name, const std::string& file) {
  const std::span<const std::byte> bytes = tensor_bytes(tensor);
  if (const auto bad = first_not_bool(bytes)) {
    throw DataError(text(file, ": element ", *bad, " of the bool tensor '", printable(name), "' is ",
                         static_cast<int>(bytes[static_cast<std::size_t>(*bad)])));
  }
}

}  // namespace

std::uint64_t TensorLayout::bytes() const {
  std::uint64_t bytes = c10::elementSize(type);
  for (const std::int64_t size : shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

void check_dense(const std::string& name, const at::Tensor& tensor) {
  require(tensor.defined(), "tensor '", name, "' to be saved is undefined");
  require(tensor.layout() == at::kStrided, "tensor '", name, "' cannot be saved: it is not dense");
}

void sink_values(const at::Tensor& tensor, const FileSink& sink) { sink(tensor_bytes(plain(tensor))); }

namespace {

using Metadata = std::map<std::string, std::string>;
using Fill = std::function<void(const TensorLayout&, const FileSink&)>;
using WriteFile = void(const std::filesystem::path&, const std::function<void(const FileSink&)>&);

FileDigest write(WriteFile& write_file, const std::filesystem::path& path,
                 const std::vector<TensorLayout>& tensors, const Metadata& metadata, const Fill& fill) {
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  std::uint64_t end = 0;
  for (const TensorLayout& tensor : tensors) {
    require(tensor.name != "__metadata__", "no tensor can be called __metadata__ in a safetensors file");
    const std::uint64_t begin = std::exchange(end, end + tensor.bytes());
    header.entries.push_back(
        {.name = tensor.name, .type = tensor.type, .shape = tensor.shape, .begin = begin, .end = end});
  }
  const std::string json = header_json(header);
  const std::uint64_t length = json.size();
  Xxh3 hash;
  std::uint64_t written = 0;
  write_file(path, [&](const FileSink& sink) {
    const FileSink put = [&](std::span<const std::byte> bytes) {
      for (std::size_t begin = 0; begin < bytes.size(); begin += kPiece) {
        const auto piece = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
        hash.add(piece);
        sink(piece);
        count_disk_write(DiskUse::kCheckpoints, piece.size());
      }
      written += bytes.size();
    };
    put(std::as_bytes(std::span(&length, 1)));
    put(std::as_bytes(std::span(json)));
    for (const TensorLayout& tensor : tensors) fill(tensor, put);
    require(written == sizeof length + json.size() + end, path.string(), " was to get ", end,
            " bytes of tensors, and got ", written - sizeof length - json.size());
  });
  return {.bytes = written, .xxh3 = hash.hex()};
}

}  // namespace

FileDigest write_safetensors(const std::filesystem::path& path, const std::vector<TensorLayout>& tensors,
                             const Metadata& metadata, const Fill& fill) {
  return write(write_file_atomic, path, tensors, metadata, fill);
}

FileDigest save_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                            const Metadata& metadata) {
  std::vector<TensorLayout> layouts;
  for (const auto& [name, tensor] : tensors) {
    check_dense(name, tensor);
    layouts.push_back({.name = name, .type = tensor.scalar_type(), .shape = tensor.sizes().vec()});
  }
  return write(
      write_file_atomic, path, layouts, metadata,
      [&](const TensorLayout& layout, const FileSink& sink) { sink_values(tensors.at(layout.name), sink); });
}

FileDigest write_safetensors_synced(const std::filesystem::path& path,
                                    const std::vector<TensorLayout>& tensors, const Metadata& metadata,
                                    const Fill& fill) {
  return write(write_file_synced, path, tensors, metadata, fill);
}

SafetensorsLayout layout_of_safetensors(const std::filesystem::path& path) {
  Reader reader(path);
  SafetensorsHeader header = read_header(reader, path.string());
  return {.header = std::move(header), .data_begin = reader.position()};
}

SafetensorsContents inspect_safetensors(const std::filesystem::path& path) {
  Reader reader(path);
  SafetensorsHeader header = read_header(reader, path.string());
  SafetensorsContents contents{.file = path.filename().string(),
                               .file_bytes = reader.size(),
                               .tensors = {},
                               .metadata = std::move(header.metadata)};
  for (HeaderEntry& entry : header.entries) {
    std::string dtype = dtype_name(entry.type, entry.name);
    contents.tensors.push_back({.name = std::move(entry.name),
                                .dtype = std::move(dtype),
                                .shape = std::move(entry.shape),
                                .bytes = entry.end - entry.begin});
  }
  return contents;
}

SafetensorsFile load_safetensors(const std::filesystem::path& path) {
  const std::string file = path.string();
  Reader reader(path);
  SafetensorsHeader header = read_header(reader, file);
  SafetensorsFile result;
  result.metadata = std::move(header.metadata);
  for (const HeaderEntry& entry : header.entries) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.type));
    if (tensor.nbytes() > 0) reader.read(tensor.mutable_data_ptr(), tensor.nbytes());
    if (entry.type == at::kBool) check_bools(tensor, entry.name, file);
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  result.digest = reader.digest();
  return result;
}

}  // namespace trireme::checkpoint
