#include "trireme/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/internal/dtype.h"
#include "trireme/checkpoint/internal/safetensors_header.h"

namespace trireme::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data are written as they lie in memory");

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// What is written: dense, row-major, on the CPU; the tensor itself where it is that already.
at::Tensor plain(const std::string& name, const at::Tensor& tensor) {
  require(tensor.defined(), "tensor '", name, "' to be saved is undefined");
  require(tensor.layout() == at::kStrided, "tensor '", name, "' cannot be saved: it is not dense");
  return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), stream_(path, std::ios::binary) {
    std::error_code error;
    size_ = std::filesystem::file_size(path, error);
    if (error || !stream_) {
      throw DataError(
          text("cannot open ", path.string(), ": ", error ? error.message() : std::strerror(errno)));
    }
  }

  std::uint64_t size() const { return size_; }

  void read(std::uint64_t offset, void* target, std::size_t count) {
    stream_.seekg(static_cast<std::streamoff>(offset));
    stream_.read(static_cast<char*>(target), static_cast<std::streamsize>(count));
    if (!stream_) throw DataError(text("cannot read ", count, " bytes at ", offset, " of ", path_.string()));
  }

 private:
  const std::filesystem::path& path_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
};

/// Length of the JSON header, checked against the file.
std::uint64_t header_length(Reader& reader, const std::string& file) {
  if (reader.size() < 8) {
    throw DataError(text(file, " is not a safetensors file: it has only ", reader.size(), " bytes"));
  }
  std::array<unsigned char, 8> bytes;
  reader.read(0, bytes.data(), bytes.size());
  std::uint64_t length = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) length = (length << 8) | bytes[i];
  if (length > kMaxHeaderBytes || length > reader.size() - 8) {
    throw DataError(text(file, " is not a valid safetensors file: it announces a header of ", length,
                         " bytes and has ", reader.size(), " in all (foreign or truncated)"));
  }
  return length;
}

struct PlacedHeader {
  SafetensorsHeader header;
  std::uint64_t data_begin = 0;
};

PlacedHeader read_header(Reader& reader, const std::string& file) {
  const std::uint64_t length = header_length(reader, file);
  std::string json(static_cast<std::size_t>(length), '\0');
  reader.read(8, json.data(), json.size());
  const std::uint64_t data_begin = 8 + length;
  return {.header = parse_header(json, reader.size() - data_begin, file), .data_begin = data_begin};
}

/// A bool that is neither 0 nor 1 is undefined behaviour for whoever looks at it.
void check_bools(const at::Tensor& tensor, const std::string& name, const std::string& file) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
  const auto* end = bytes + tensor.nbytes();
  const auto* bad = std::find_if(bytes, end, [](unsigned char byte) { return byte > 1; });
  if (bad != end) {
    throw DataError(text(file, ": element ", bad - bytes, " of the bool tensor '", name, "' is ", int{*bad}));
  }
}

}  // namespace

void save_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                      const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  std::vector<at::Tensor> values;
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    require(name != "__metadata__", "no tensor can be called __metadata__ in a safetensors file");
    values.push_back(plain(name, tensor));
    const std::uint64_t begin = end;
    end += values.back().nbytes();
    header.entries.push_back({.name = name,
                              .type = tensor.scalar_type(),
                              .shape = tensor.sizes().vec(),
                              .begin = begin,
                              .end = end});
  }
  const std::string json = header_json(header);
  const std::uint64_t length = json.size();
  write_file_atomic(path, [&](const FileSink& sink) {
    sink(std::as_bytes(std::span(&length, 1)));
    sink(std::as_bytes(std::span(json)));
    for (const at::Tensor& value : values) sink(bytes_of(value));
  });
}

SafetensorsContents inspect_safetensors(const std::filesystem::path& path) {
  Reader reader(path);
  SafetensorsHeader header = read_header(reader, path.string()).header;
  SafetensorsContents contents{.file = path.filename().string(),
                               .file_bytes = reader.size(),
                               .tensors = {},
                               .metadata = std::move(header.metadata)};
  for (HeaderEntry& entry : header.entries) {
    contents.tensors.push_back({.name = std::move(entry.name),
                                .dtype = dtype_name(entry.type),
                                .shape = std::move(entry.shape),
                                .bytes = entry.end - entry.begin});
  }
  return contents;
}

SafetensorsFile load_safetensors(const std::filesystem::path& path) {
  const std::string file = path.string();
  Reader reader(path);
  PlacedHeader placed = read_header(reader, file);
  SafetensorsFile result;
  result.metadata = std::move(placed.header.metadata);
  for (const HeaderEntry& entry : placed.header.entries) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.type));
    if (tensor.nbytes() > 0)
      reader.read(placed.data_begin + entry.begin, tensor.mutable_data_ptr(), tensor.nbytes());
    if (entry.type == at::kBool) check_bools(tensor, entry.name, file);
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  return result;
}

}  // namespace trireme::checkpoint
