#pragma once
// How every file of a checkpoint begins: 8 letters of which the last is a version, then the size and the XXH3
// of the structure that follows (u64 each). Pure functions.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/ps/internal/hash.h"

namespace trireme::ps {

[[noreturn]] inline void damaged(const std::filesystem::path& path, const std::string& what) {
  throw DataError(text(path.string(), ": ", what, "; take another checkpoint"));
}

struct FilePreamble {
  static constexpr std::size_t kBytes = 24;
  bool is_older = false;
  std::uint64_t size = 0, hash = 0;

  static std::vector<std::byte> before(std::string_view magic, std::span<const std::byte> body) {
    std::vector<std::byte> bytes(kBytes);
    const std::uint64_t size = body.size(), hash = hash_bytes(body);
    std::memcpy(bytes.data(), magic.data(), magic.size());
    std::memcpy(bytes.data() + 8, &size, sizeof size);
    std::memcpy(bytes.data() + 16, &hash, sizeof hash);
    return bytes;
  }
  /// Of the first bytes of a file of `file_bytes`, which begins with one of the two.
  static FilePreamble of(const std::filesystem::path& path, std::span<const std::byte> bytes,
                         std::uint64_t file_bytes, std::string_view magic, std::string_view older) {
    if (bytes.size() < kBytes) damaged(path, text("is truncated: it has ", bytes.size(), " bytes"));
    const auto begins_with = [&](std::string_view word) {
      return std::memcmp(bytes.data(), word.data(), word.size()) == 0;
    };
    if (!begins_with(magic) && !begins_with(older))
      damaged(path, text("is no file of this kind: it begins with neither ", magic, " nor ", older));
    FilePreamble preamble;
    preamble.is_older = begins_with(older);
    std::memcpy(&preamble.size, bytes.data() + 8, sizeof preamble.size);
    std::memcpy(&preamble.hash, bytes.data() + 16, sizeof preamble.hash);
    if (preamble.size > file_bytes - kBytes)
      damaged(path,
              text("is truncated: its header has ", preamble.size, " bytes, the file ", file_bytes - kBytes));
    return preamble;
  }
  void check(const std::filesystem::path& path, std::span<const std::byte> body) const {
    if (hash_bytes(body) != hash) damaged(path, "is damaged: its header has another checksum");
  }
};

}  // namespace trireme::ps
