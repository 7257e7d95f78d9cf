#include "trireme/data/internal/token_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"

namespace trireme::data {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxDocumentBytes = std::size_t{64} << 20;
constexpr JsonLimits kLineLimits{.levels = 64, .values = 1'000'000};

/// A file, read from its first byte to its last.
class ByteStream {
 public:
  explicit ByteStream(const std::filesystem::path& path) : path_(path), file_(path, std::ios::binary) {
    if (!file_ || std::filesystem::is_directory(path))
      throw DataError(text("cannot open ", path.string(), ": ", std::strerror(file_ ? EISDIR : errno)));
  }
  const std::filesystem::path& path() const { return path_; }
  std::int64_t bytes_read() const { return bytes_read_; }

  /// Fills `piece`, which becomes shorter only at the end of the file.
  void read(std::string& piece) {
    file_.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    piece.resize(static_cast<std::size_t>(file_.gcount()));
    took(piece.size());
  }

  /// Throws DataError for a line of more than kMaxDocumentBytes.
  bool read_line(std::string& line) {
    line.clear();
    for (std::array<char, kPieceBytes> piece;;) {
      file_.getline(piece.data(), piece.size());
      const bool is_whole = file_.good();
      line.append(piece.data(), static_cast<std::size_t>(file_.gcount()) - (is_whole ? 1 : 0));
      if (line.size() > kMaxDocumentBytes)
        throw DataError(text(path_.string(), " has a line of more than ", kMaxDocumentBytes,
                             " bytes at offset ", bytes_read_));
      if (is_whole || file_.eof() || file_.bad()) break;
      file_.clear();  // the piece was full
    }
    const bool found = !line.empty() || file_.good();
    took(line.size() + 1);
    return found;
  }

 private:
  void took(std::size_t bytes) {
    if (file_.bad()) throw DataError(text("cannot read ", path_.string(), " after offset ", bytes_read_));
    bytes_read_ += static_cast<std::int64_t>(bytes);
  }

  std::filesystem::path path_;
  std::ifstream file_;
  std::int64_t bytes_read_ = 0;
};

/// The texts of a file in order: pieces of it, or its documents.
class TextPieces {
 public:
  TextPieces(const TextSource& source, const std::filesystem::path& path)
      : file_(path), lines_(source.form == TextForm::kJsonLines), field_(source.field) {}
  std::int64_t bytes_read() const { return file_.bytes_read(); }

  bool next(std::string& piece) {
    if (lines_) return next_document(piece);
    piece.resize(kPieceBytes);
    file_.read(piece);
    return !piece.empty();
  }

 private:
  bool next_document(std::string& piece) {
    do {
      if (!file_.read_line(piece)) return false;
      ++line_;
    } while (piece.find_first_not_of(" \t\r") == std::string::npos);
    const auto refuse = [&](const std::string& what) {
      throw DataError(text(file_.path().string(), ":", line_, ": ", what,
                           "; expected one JSON object per line, with a text under '", field_, "'"));
    };
    nlohmann::json json;
    try {
      json = parse_json<nlohmann::json>(piece, kLineLimits);
    } catch (const DataError& reason) {
      refuse(reason.what());
    }
    if (!json.is_object()) refuse("this is no object");
    if (!json.contains(field_)) refuse(text("there is no '", field_, "'"));
    if (!json[field_].is_string()) refuse(text("'", field_, "' is no text"));
    piece = json[field_].get<std::string>();
    return true;
  }

  ByteStream file_;
  const bool lines_;
  const std::string field_;
  std::int64_t line_ = 0;
};

class TextTokens : public TokenReader {
 public:
  TextTokens(const TextSource& source, const std::filesystem::path& path, const ByteNumbers& bytes)
      : pieces_(source, path), bytes_(bytes), has_documents_(source.form == TextForm::kJsonLines) {}
  std::int64_t bytes_read() const override { return pieces_.bytes_read(); }
  bool next(Tokens& piece) override {
    if (!pieces_.next(text_)) return false;
    piece.clear();
    bytes_.append(text_, piece);
    if (has_documents_) piece.push_back(static_cast<std::uint32_t>(bytes_.characters().size()));
    return true;
  }

 private:
  TextPieces pieces_;
  const ByteNumbers& bytes_;
  const bool has_documents_;
  std::string text_;
};

class NumberTokens : public TokenReader {
 public:
  NumberTokens(const std::filesystem::path& path, std::size_t width) : file_(path), width_(width) {}
  std::int64_t bytes_read() const override { return file_.bytes_read(); }
  bool next(Tokens& piece) override {
    raw_.resize(kPieceBytes);
    file_.read(raw_);
    if (raw_.size() % width_ != 0) {
      throw DataError(text(file_.path().string(), " ends at offset ", file_.bytes_read(),
                           " in the middle of a number of ", width_,
                           " bytes: it is cut short, or holds others"));
    }
    piece.assign(raw_.size() / width_, 0);
    for (std::size_t i = 0; i < piece.size(); ++i) std::memcpy(&piece[i], raw_.data() + i * width_, width_);
    return !piece.empty();
  }

 private:
  ByteStream file_;
  const std::size_t width_;
  std::string raw_;
};

bool holds_numbers(const TextSource& source) {
  return source.form == TextForm::kU16 || source.form == TextForm::kU32;
}

}  // namespace

void ByteNumbers::see(std::string_view bytes) {
  std::array<bool, 256> occurs{};
  for (const char byte : bytes) occurs[static_cast<unsigned char>(byte)] = true;
  for (const char byte : characters_) occurs[static_cast<unsigned char>(byte)] = true;
  characters_.clear();
  for (std::size_t byte = 0; byte < occurs.size(); ++byte) {
    if (!occurs[byte]) continue;
    number_[byte] = static_cast<std::int32_t>(characters_.size());
    characters_ += static_cast<char>(byte);
  }
}

void ByteNumbers::append(std::string_view bytes, Tokens& tokens) const {
  for (const char byte : bytes) {
    const std::int32_t number = number_[static_cast<unsigned char>(byte)];
    if (number < 0)
      throw DataError(text("a byte of value ", int{static_cast<unsigned char>(byte)}, " has no number"));
    tokens.push_back(static_cast<std::uint32_t>(number));
  }
}

TokenCensus take_census(const TextSource& source, const std::filesystem::path& path, ByteNumbers& bytes) {
  TokenCensus census;
  if (holds_numbers(source)) {
    const auto reader = open_tokens(source, path, bytes);
    for (Tokens piece; reader->next(piece); ++census.pieces) {
      census.tokens += static_cast<std::int64_t>(piece.size());
      census.largest = std::max(census.largest, *std::max_element(piece.begin(), piece.end()));
    }
    return census;
  }
  TextPieces pieces(source, path);
  const std::int64_t ends = source.form == TextForm::kJsonLines ? 1 : 0;
  for (std::string piece; pieces.next(piece); ++census.pieces) {
    bytes.see(piece);
    census.tokens += static_cast<std::int64_t>(piece.size()) + ends;
  }
  return census;
}

std::unique_ptr<TokenReader> open_tokens(const TextSource& source, const std::filesystem::path& path,
                                         const ByteNumbers& bytes) {
  if (holds_numbers(source))
    return std::make_unique<NumberTokens>(path, source.form == TextForm::kU16 ? 2 : 4);
  return std::make_unique<TextTokens>(source, path, bytes);
}

}  // namespace trireme::data
