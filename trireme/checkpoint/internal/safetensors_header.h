#pragma once
// The JSON header of a safetensors file, read strictly. After parse_header every entry is inside the data and
// has exactly the bytes of its shape and type. The entries cover the data without gap or overlap. Stateless;
// thread-safe.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

struct HeaderEntry {
  std::string name;
  at::ScalarType type = at::ScalarType::Float;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< bytes from the first data byte
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
};

/// The specification's limit on the header.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// `data_bytes` follow the header. Time and memory are linear in the header. Throws DataError with the fault
/// of `file`, a name for messages.
SafetensorsHeader parse_header(std::string_view json, std::uint64_t data_bytes, const std::string& file);

struct SafetensorsLayout {
  SafetensorsHeader header;
  std::uint64_t data_begin = 0;  ///< bytes from the begin of the file
};

/// Throws DataError as load_safetensors does.
SafetensorsLayout layout_of_safetensors(const std::filesystem::path& path);

/// The header's JSON, padded with spaces so that length field and header together end on 8 bytes.
std::string header_json(const SafetensorsHeader& header);

}  // namespace trireme::checkpoint
