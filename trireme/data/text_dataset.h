#pragma once
// Plain text as sequences of characters for next-character models, prepared as in nanoGPT's shakespeare_char
// (github.com/karpathy/nanoGPT, data/shakespeare_char/prepare.py). The vocabulary is the sorted set of the
// characters of the whole file. The first nine tenths are for training, the rest for validation. A character
// is a byte: UTF-8 text works, and its longer characters take several. Immutable; thread-safe.

#include <filesystem>

#include "trireme/data/dataset.h"

namespace trireme::data {

/// A text whose characters are numbered.
class EncodedText {
 public:
  /// Reads the whole file. Throws DataError: unreadable.
  explicit EncodedText(const std::filesystem::path& path);
  std::int64_t size() const { return static_cast<std::int64_t>(codes_.size()); }
  /// One character per class, in the order of their numbers.
  const std::string& vocabulary() const { return vocabulary_; }
  const std::uint8_t* codes() const { return codes_.data(); }

 private:
  std::vector<std::uint8_t> codes_;
  std::string vocabulary_;
};

/// Which characters of the text a data set is made of, and where its samples begin.
struct TextRange {
  std::int64_t begin = 0, end = 0;  ///< characters of the text
  std::int64_t block = 64;          ///< characters per sample
  std::int64_t stride = 1;          ///< characters from the start of a sample to that of the next
};

class TextDataset : public Dataset {
 public:
  /// Samples start at begin, begin + stride, ...; each needs block + 1 characters. Throws InvalidArgument: a
  /// range without a sample.
  TextDataset(std::shared_ptr<const EncodedText> text, const TextRange& range);

  std::int64_t size() const override { return size_; }
  /// input: i64 (block), the characters; target: i64 (block), those one further.
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> indices) const override;

 private:
  void copy(std::int64_t index, std::int64_t* input, std::int64_t* target) const;

  std::shared_ptr<const EncodedText> text_;
  TextRange range_;
  std::int64_t size_;
};

}  // namespace trireme::data
