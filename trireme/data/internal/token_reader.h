#pragma once
// Files of text as streams of tokens. One thread.

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/pack_text.h"

namespace trireme::data {

using Tokens = std::vector<std::uint32_t>;

/// The bytes of texts, numbered in their order.
class ByteNumbers {
 public:
  ByteNumbers() { number_.fill(-1); }
  void see(std::string_view bytes);
  /// One character per number.
  const std::string& characters() const { return characters_; }
  /// Appends the numbers of bytes that were seen. Throws DataError for another one.
  void append(std::string_view bytes, Tokens& tokens) const;

 private:
  std::array<std::int32_t, 256> number_{};
  std::string characters_;
};

class TokenReader {
 public:
  virtual ~TokenReader() = default;
  /// The next tokens, in place of those in `piece`: a document, where there are such, else at most some
  /// thousands; false at the end. Throws DataError.
  virtual bool next(Tokens& piece) = 0;
  /// Bytes of the file so far.
  virtual std::int64_t bytes_read() const = 0;
};

/// Result of one pass over a file.
struct TokenCensus {
  std::int64_t pieces = 0, tokens = 0;
  std::uint32_t largest = 0;  ///< kU16, kU32
};

/// `bytes` sees those of all texts; of numbers it gets none. Throws DataError.
TokenCensus take_census(const TextSource& source, const std::filesystem::path& path, ByteNumbers& bytes);

/// Throws DataError.
std::unique_ptr<TokenReader> open_tokens(const TextSource& source, const std::filesystem::path& path,
                                         const ByteNumbers& bytes);

}  // namespace trireme::data
