#pragma once
// The lines of a table as text, each as its cells (RFC 4180). Reads forward, a piece of the file at a time.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/byte_source.h"

namespace trireme::data {

class CsvReader {
 public:
  /// `file` outlives the reader. Throws DataError for a file in UTF-16, or compressed by gzip.
  CsvReader(const ByteSource& file, char separator);

  /// The next line's cells, without quotes; false: there is none. Empty lines are passed over. A line ends
  /// with LF, CR LF or CR. Throws DataError with file and line: a quotation mark that is not closed, a line
  /// of more than 16 MiB.
  bool next(std::vector<std::string>& cells);
  /// Of the line that next() has read, from 1 on.
  std::int64_t number() const { return number_; }
  /// Throws DataError with file and line before `what`.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  bool read_line(std::vector<std::string>& cells);
  bool ends_line(char c);
  int peek();
  int get();

  const ByteSource& file_;
  const char separator_;
  std::int64_t read_ = 0, number_ = 1, next_number_ = 1;
  std::string piece_;
  std::size_t at_ = 0;
};

}  // namespace trireme::data
