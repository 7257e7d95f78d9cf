#pragma once
// A file descriptor that closes itself, and the error of a system call on a file.

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

/// Throws DataError with errno's reason.
[[noreturn]] inline void file_failed(std::string_view what, const std::filesystem::path& path) {
  const int code = errno;
  const char* advice = code == ENOSPC ? "; free some space there and run again" : "";
  throw DataError(text("cannot ", what, " ", path.string(), ": ", std::strerror(code), advice));
}

}  // namespace trireme
