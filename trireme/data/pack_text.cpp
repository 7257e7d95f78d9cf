#include "trireme/data/pack_text.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/data/internal/packed_manifest.h"
#include "trireme/data/internal/shard_set.h"
#include "trireme/data/internal/token_reader.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kPageTokens = std::int64_t{32} << 10;

std::int64_t bytes_per_token(std::int64_t vocabulary) {
  return vocabulary <= 256 ? 1 : vocabulary <= 65536 ? 2 : 4;
}

/// Appends tokens with `bytes` bytes each.
void append_tokens(const std::uint32_t* tokens, std::size_t count, std::int64_t bytes, std::string& record) {
  const auto width = static_cast<std::size_t>(bytes);
  const std::size_t had = record.size();
  record.resize(had + count * width);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(record.data() + had + i * width, tokens + i, width);
}

/// The tokens of one file. Splits take consecutive parts of it.
class TokenStream {
 public:
  TokenStream(const TextSource& source, const std::filesystem::path& path, const ByteNumbers& bytes)
      : path_(path),
        bytes_of_file_(static_cast<std::int64_t>(std::filesystem::file_size(path))),
        has_documents_(source.form == TextForm::kJsonLines),
        reader_(open_tokens(source, path, bytes)) {}

  /// Begins a split of the next `units`: documents if the file has them, else tokens.
  void begin(const std::string& split, std::int64_t units) {
    split_ = split;
    left_ = units;
  }

  /// Reads the next page of the split; false: no tokens are left.
  bool next_page(std::int64_t bytes, const PackOptions& options, std::string& record) {
    std::int64_t room = kPageTokens;
    while (room > 0 && refill()) {
      const std::int64_t some = std::min(room, available());
      append_tokens(piece_.data() + taken_, static_cast<std::size_t>(some), bytes, record);
      taken_ += some;
      room -= some;
      tokens_ += some;
      if (!has_documents_) left_ -= some;
    }
    if (options.progress) options.progress(split_, reader_->bytes_read(), bytes_of_file_);
    return room < kPageTokens;
  }

  std::int64_t take_count() { return std::exchange(tokens_, 0); }

 private:
  std::int64_t available() const {
    const std::int64_t here = std::ssize(piece_) - taken_;
    return has_documents_ ? here : std::min(here, left_);
  }

  /// Whether the split has tokens left. A document that has begun belongs to its split.
  bool refill() {
    while (available() == 0) {
      if (left_ == 0) return false;
      if (!reader_->next(piece_)) {
        throw DataError(text(path_.string(), " has become shorter while it was packed"));
      }
      taken_ = 0;
      if (has_documents_) --left_;
    }
    return true;
  }

  const std::filesystem::path path_;
  const std::int64_t bytes_of_file_;
  const bool has_documents_;
  const std::unique_ptr<TokenReader> reader_;
  std::string split_;
  std::int64_t left_ = 0, taken_ = 0, tokens_ = 0;
  Tokens piece_;
};

/// Number of tokens, or documents, of a file in each split.
struct Parts {
  std::int64_t train = 0, test = 0;
};

Parts parts_of(const TextSource& source, const TokenCensus& census, const TokenCensus& validation) {
  const bool has_documents = source.form == TextForm::kJsonLines;
  const std::int64_t units = has_documents ? census.pieces : census.tokens;
  if (!source.validation.empty()) return {units, has_documents ? validation.pieces : validation.tokens};
  return {units * 9 / 10, units - units * 9 / 10};
}

std::int64_t vocabulary_of(const TextSource& source, const ByteNumbers& bytes, const TokenCensus& train,
                           const TokenCensus& validation) {
  const auto characters = static_cast<std::int64_t>(bytes.characters().size());
  if (source.form == TextForm::kCharacters) return characters;
  if (source.form == TextForm::kJsonLines) return characters + 1;
  const std::int64_t found = std::int64_t{std::max(train.largest, validation.largest)} + 1;
  if (source.vocabulary == 0) return found;
  if (found <= source.vocabulary) return source.vocabulary;
  throw DataError(text((train.largest >= validation.largest ? source.path : source.validation).string(),
                       " holds the token ", found - 1, ", and the vocabulary has ", source.vocabulary,
                       ": are its numbers of another width?"));
}

PackedSplit write_text_split(const ShardSet& shards, TokenStream& stream, const std::string& name,
                             std::int64_t units, std::int64_t bytes, const PackOptions& options) {
  stream.begin(name, units);
  PackedSplit split =
      shards.write(name, [&](std::string& record) { return stream.next_page(bytes, options, record); });
  split.samples = stream.take_count();
  return split;
}

}  // namespace

PackedSize pack_text(const TextSource& source, const PackOptions& options) {
  require(source.vocabulary >= 0 && source.vocabulary <= std::int64_t{1} << 32,
          "a vocabulary has 1 to 2^32 tokens, not ", source.vocabulary);
  ByteNumbers bytes;
  const TokenCensus census = take_census(source, source.path, bytes);
  TokenCensus validation;
  if (!source.validation.empty()) validation = take_census(source, source.validation, bytes);
  const Parts parts = parts_of(source, census, validation);
  if (parts.train < 1 || parts.test < 1) {
    throw DataError(text(source.path.string(), " has ", census.tokens,
                         " tokens, too few for a split to train with and one to validate with"));
  }
  const bool has_characters = source.form == TextForm::kCharacters || source.form == TextForm::kJsonLines;
  const std::int64_t vocabulary = vocabulary_of(source, bytes, census, validation);
  TokenLayout layout{.bytes_per_token = bytes_per_token(vocabulary),
                     .page_tokens = kPageTokens,
                     .characters = has_characters ? bytes.characters() : std::string()};
  if (source.form == TextForm::kJsonLines) layout.end_of_document = vocabulary - 1;
  PackedManifest manifest{.source = "text",
                          .source_path = source.path.string(),
                          .num_classes = vocabulary,
                          .held_out = "validation",
                          .tokens = layout};
  ShardSet shards(options, manifest.source);
  TokenStream stream(source, source.path, bytes);
  manifest.train = write_text_split(shards, stream, "train", parts.train, layout.bytes_per_token, options);
  if (source.validation.empty()) {
    manifest.test = write_text_split(shards, stream, "test", parts.test, layout.bytes_per_token, options);
  } else {
    TokenStream other(source, source.validation, bytes);
    manifest.test = write_text_split(shards, other, "test", parts.test, layout.bytes_per_token, options);
  }
  shards.finish(manifest);
  return size_of(manifest);
}

}  // namespace trireme::data
