#pragma once
// A digest of the content of a data set, by which a resumed run recognises it. It depends on names, sizes and
// bytes, and not on where files are or when they were written. It is no protection against intent. Source of
// the hash: FNV-1a, 64 bits (Fowler, Noll, Vo). One thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "trireme/data/byte_source.h"

namespace trireme::data {

class ContentDigest {
 public:
  ContentDigest& add(std::string_view text);
  ContentDigest& add(std::int64_t number);
  /// `size` bytes of a file from `offset` on: their number and all of them up to 16 MiB, of more 64 pieces of
  /// 4 KiB at equal distances. Throws DataError.
  ContentDigest& add(const ByteSource& file, std::int64_t offset, std::int64_t size);
  ContentDigest& add(const ByteSource& file) { return add(file, 0, file.size()); }
  /// 16 hexadecimal digits.
  std::string text() const;

 private:
  void mix(std::span<const std::byte> bytes);

  std::uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace trireme::data
