#include "trireme/base/bounded_file.h"

#include <system_error>

#include "trireme/base/error.h"
#include "trireme/base/internal/read_beginning.h"
#include "trireme/base/text.h"

namespace trireme {

std::string read_bounded_file(const std::filesystem::path& path, std::uint64_t most_bytes,
                              const std::string& what) {
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::status(path, error).type();
  using Type = std::filesystem::file_type;
  if (!error && type != Type::regular && type != Type::not_found) {
    throw DataError(text(path.string(), " is not a ", what, ": it is ",
                         type == Type::fifo ? "a FIFO and " : "", "no regular file"));
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (!error && bytes > most_bytes) {
    throw DataError(text(path.string(), " is not a ", what, ": it has ", bytes, " bytes, and at most ",
                         most_bytes, " are read"));
  }
  return read_bounded_stream(path, most_bytes, what);  // the file may have grown
}

std::string read_bounded_stream(const std::filesystem::path& path, std::uint64_t most_bytes,
                                const std::string& what) {
  std::string content = read_beginning(path, most_bytes + 1);
  if (content.size() > most_bytes) {
    throw DataError(text(path.string(), " is not a ", what, ": it has more than ", most_bytes, " bytes"));
  }
  return content;
}

}  // namespace trireme
