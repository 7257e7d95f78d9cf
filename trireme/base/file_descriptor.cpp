#include "trireme/base/file_descriptor.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace trireme {

FileDescriptor::~FileDescriptor() {
  if (is_open()) ::close(fd_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  const FileDescriptor before(std::exchange(fd_, other.release()));
  return *this;
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

bool FileDescriptor::close() { return ::close(release()) == 0; }

bool FileDescriptor::write(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace trireme
