#include "trireme/data/content_digest.h"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace trireme::data {
namespace {

constexpr std::int64_t kWholeBytes = 16 << 20, kBlockBytes = 1 << 20, kPieceBytes = 4096, kPieces = 64;

}  // namespace

void ContentDigest::mix(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  for (const std::byte byte : bytes) hash_ = (hash_ ^ static_cast<std::uint64_t>(byte)) * kPrime;
}

ContentDigest& ContentDigest::add(std::string_view text) {
  add(static_cast<std::int64_t>(text.size()));
  mix(std::as_bytes(std::span(text)));
  return *this;
}

ContentDigest& ContentDigest::add(std::int64_t number) {
  mix(std::as_bytes(std::span(&number, 1)));
  return *this;
}

ContentDigest& ContentDigest::add(const ByteSource& file, std::int64_t offset, std::int64_t size) {
  add(size);
  const bool whole = size <= kWholeBytes;
  const std::int64_t piece = whole ? kBlockBytes : kPieceBytes;
  const std::int64_t pieces = whole ? (size + piece - 1) / piece : kPieces;
  std::vector<std::byte> bytes;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t begin = whole ? i * piece : (size - piece) * i / (kPieces - 1);
    bytes.resize(static_cast<std::size_t>(std::min(piece, size - begin)));
    file.read(offset + begin, bytes);
    mix(bytes);
  }
  return *this;
}

std::string ContentDigest::text() const {
  std::string digits(16, '0');
  std::snprintf(digits.data(), digits.size() + 1, "%016llx", static_cast<unsigned long long>(hash_));
  return digits;
}

}  // namespace trireme::data
