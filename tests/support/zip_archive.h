#pragma once
// Zip archives as bytes, valid and invalid ones. Members are stored uncompressed. Stateless.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

/// Little-endian, of `size` bytes.
inline std::string number_bytes(std::uint64_t number, int size) {
  std::string bytes;
  for (; size > 0; --size, number >>= 8) bytes += static_cast<char>(number & 0xff);
  return bytes;
}

/// A member of zip_archive().
struct ZipEntry {
  std::string name, content;
  std::uint16_t method = 0;         ///< 8: claims to be compressed
  std::int64_t claimed_bytes = -1;  ///< size in the directory; -1: that of the content
  bool shares_first = false;        ///< at the same offset as the first member
};

/// All checksums are 0.
inline std::string zip_archive(const std::vector<ZipEntry>& entries) {
  std::string bytes, directory;
  for (const ZipEntry& entry : entries) {
    const std::uint64_t size =
        entry.claimed_bytes < 0 ? entry.content.size() : static_cast<std::uint64_t>(entry.claimed_bytes);
    const std::string fixed = number_bytes(20, 2) + number_bytes(0, 2) + number_bytes(entry.method, 2) +
                              number_bytes(0, 8) + number_bytes(size, 4) + number_bytes(size, 4) +
                              number_bytes(entry.name.size(), 2) + number_bytes(0, 2);
    const std::uint64_t offset = entry.shares_first ? 0 : bytes.size();
    directory +=
        "PK\1\2" + number_bytes(20, 2) + fixed + number_bytes(0, 10) + number_bytes(offset, 4) + entry.name;
    if (!entry.shares_first) bytes += "PK\3\4" + fixed + entry.name + entry.content;
  }
  const std::size_t begin = bytes.size();
  return bytes + directory + "PK\5\6" + number_bytes(0, 4) + number_bytes(entries.size(), 2) +
         number_bytes(entries.size(), 2) + number_bytes(directory.size(), 4) + number_bytes(begin, 4) +
         number_bytes(0, 2);
}

}  // namespace trireme::test
