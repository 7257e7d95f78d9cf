#pragma once
// The error of a system call on a file.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {

/// Throws DataError with errno's reason.
[[noreturn]] inline void file_failed(std::string_view what, const std::filesystem::path& path) {
  const int code = errno;
  const char* advice = code == ENOSPC ? "; free some space there and run again" : "";
  throw DataError(text("cannot ", what, " ", path.string(), ": ", std::strerror(code), advice));
}

}  // namespace trireme
