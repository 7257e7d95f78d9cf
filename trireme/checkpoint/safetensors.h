#pragma once
// The safetensors file format: 8 bytes little-endian header length, a JSON header, then raw little-endian
// tensor data, no pickle. Source: the format's specification (huggingface/safetensors README). Files are
// written atomically with the tensors in name order; a reader checks every length and offset before it
// touches data. Stateless; thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/files.h"

namespace trireme::checkpoint {

/// Extension of the names of such files.
inline constexpr std::string_view kSafetensorsExtension = ".safetensors";

using TensorMap = std::map<std::string, at::Tensor>;

/// Of all bytes of a file.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::string xxh3;  ///< 64 bits as 16 hex digits
};

/// All of a file in memory: its tensors, the pairs of text in its header, and the digest of its bytes.
struct SafetensorsFile {
  TensorMap tensors;
  std::map<std::string, std::string> metadata;
  FileDigest digest = {};  ///< of the bytes that were read
};

/// f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool, any shape, contiguous or not, CPU or not. Throws DataError when
/// the file cannot be written; the old file stays then. Returns the digest of the written bytes.
FileDigest save_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                            const std::map<std::string, std::string>& metadata = {});

/// Name, type and shape of a tensor that is to be written, without its values.
struct TensorLayout {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;

  std::uint64_t bytes() const;
};

/// The same for tensors that are never all in memory: `fill` gives the bytes of each in turn, row-major.
FileDigest write_safetensors(const std::filesystem::path& path, const std::vector<TensorLayout>& tensors,
                             const std::map<std::string, std::string>& metadata,
                             const std::function<void(const TensorLayout&, const FileSink&)>& fill);

/// Throws DataError with the fault: not such a file, truncated, offsets out of range or overlapping, unknown
/// dtype, header longer than the file.
SafetensorsFile load_safetensors(const std::filesystem::path& path);

/// The header's entry of one tensor.
struct TensorInfo {
  std::string name;
  std::string dtype;  ///< "F32"
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
};

/// The header of a file.
struct SafetensorsContents {
  std::string file;                 ///< its name, without the folder
  std::uint64_t file_bytes = 0;     ///< header and data
  std::vector<TensorInfo> tensors;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
};

/// Reads the header alone. Throws DataError as load_safetensors does.
SafetensorsContents inspect_safetensors(const std::filesystem::path& path);

/// XXH3 (64 bits, as 16 hex digits) over names, dtypes, shapes and bytes in name order: equal exactly when
/// the tensors are.
std::string xxh3_of(const TensorMap& tensors);

}  // namespace trireme::checkpoint
