#pragma once
// Creates idx files for tests.

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace trireme::test {

/// An idx file of bytes with these dimensions.
inline std::string idx_bytes(const std::vector<std::uint32_t>& dims, const std::string& values) {
  std::string bytes("\0\0\x08", 3);
  bytes += static_cast<char>(dims.size());
  for (const std::uint32_t dim : dims) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>((dim >> shift) & 255);
  }
  return bytes + values;
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The same bytes, compressed by the program gzip.
inline std::string gzip(const std::string& bytes) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "packed";
  const gzFile file = ::gzopen(path.c_str(), "wb");
  ::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  ::gzclose(file);
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace trireme::test
