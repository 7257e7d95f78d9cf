#include "trireme/telemetry/internal/appended_file.h"

#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::telemetry {

AppendedFile::AppendedFile(const std::filesystem::path& path)
    : path_(path), file_(open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0644)) {
  if (!file_.is_open()) throw DataError(text("cannot open ", path.string(), ": ", problem_of_open(errno)));
}

void AppendedFile::append(std::string_view bytes) {
  if (!file_.write(bytes)) throw DataError(text("cannot write ", path_.string(), ": ", std::strerror(errno)));
}

}  // namespace trireme::telemetry
