#include "trireme/data/internal/csv_reader.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

/// A longer line is not a line of numbers.
constexpr std::size_t kMaxLineBytes = 16 << 20;
/// A line with more cells is not a table.
constexpr std::size_t kMaxCells = 1 << 18;

}  // namespace

CsvReader::CsvReader(const ByteSource& file, char separator) : file_(file), separator_(separator) {
  const std::string first = read_text(file, 0, std::min<std::int64_t>(2, file.size()));
  if (first == "\xff\xfe" || first == "\xfe\xff")
    throw DataError(text(file.name(), " is text in UTF-16; expected UTF-8: save it as \"CSV UTF-8\""));
  if (first == "\x1f\x8b")
    throw DataError(text(file.name(), " is compressed by gzip; expected text: unpack it"));
}

bool CsvReader::next(std::vector<std::string>& cells) {
  do {
    cells.assign(1, "");
    number_ = next_number_;
    if (!read_line(cells)) return false;
  } while (cells.size() == 1 && cells[0].empty());
  return true;
}

void CsvReader::fail(const std::string& what) const {
  throw DataError(text(file_.name(), ", line ", number_, what));
}

/// Whether `c` ends a line: LF, CR or CR LF. Consumes the LF after a CR.
bool CsvReader::ends_line(char c) {
  if (c == '\r' && peek() == '\n') get();
  return c == '\n' || c == '\r';
}

bool CsvReader::read_line(std::vector<std::string>& cells) {
  bool quoted = false, any = false;
  std::size_t bytes = 0;
  for (int byte = get(); byte >= 0; byte = get()) {
    any = true;
    if (++bytes > kMaxLineBytes) fail(text(": it is longer than ", kMaxLineBytes, " bytes"));
    const char c = static_cast<char>(byte);
    if (quoted) {
      if (c == '\n') ++next_number_;
      if (c != '"')
        cells.back() += c;
      else if (peek() == '"')
        cells.back() += static_cast<char>(get());
      else
        quoted = false;
    } else if (c == '"' && cells.back().empty()) {
      quoted = true;
    } else if (c == separator_) {
      if (cells.size() == kMaxCells) fail(text(": it has more than ", kMaxCells, " cells"));
      cells.emplace_back();
    } else if (ends_line(c)) {
      ++next_number_;
      return true;
    } else {
      cells.back() += c;
    }
  }
  if (quoted) fail(": a quotation mark is not closed");
  return any;
}

int CsvReader::peek() {
  if (at_ == piece_.size()) {
    const std::int64_t size = std::min<std::int64_t>(1 << 20, file_.size() - read_);
    if (size == 0) return -1;
    const bool first = read_ == 0;
    piece_ = read_text(file_, read_, size);
    read_ += size;
    at_ = first && piece_.starts_with("\xef\xbb\xbf") ? 3 : 0;
    if (at_ == piece_.size()) return peek();
  }
  return static_cast<unsigned char>(piece_[at_]);
}

int CsvReader::get() {
  const int byte = peek();
  if (byte >= 0) ++at_;
  return byte;
}

}  // namespace trireme::data
