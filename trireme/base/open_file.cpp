#include "trireme/base/open_file.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// Another process that may write here may create the file again between its removal and the creation.
constexpr int kMaxCreations = 100;

FileDescriptor folder_holding(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  return FileDescriptor(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

FileDescriptor open_in(const FileDescriptor& folder, const std::string& name, int flags, mode_t mode) {
  // Without O_NONBLOCK, opening a FIFO waits for its other end.
  FileDescriptor file(
      ::openat(folder.get(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode));
  struct stat info {};
  if (!file.is_open() || ::fstat(file.get(), &info) != 0) return {};
  if (S_ISFIFO(info.st_mode) || S_ISDIR(info.st_mode)) {
    file = {};
    errno = S_ISDIR(info.st_mode) ? EISDIR : ENXIO;
  } else if (::fcntl(file.get(), F_SETFL, flags & (O_APPEND)) != 0) {
    return {};
  }
  return file;
}

}  // namespace

FileDescriptor open_file(const fs::path& path, int flags, mode_t mode) {
  const FileDescriptor folder = folder_holding(path);
  return folder.is_open() ? open_in(folder, path.filename(), flags, mode) : FileDescriptor();
}

FileDescriptor create_file(const fs::path& path, mode_t mode) {
  const FileDescriptor folder = folder_holding(path);
  const std::string name = path.filename();
  if (!folder.is_open()) return {};
  for (int tries = 0;; ++tries) {
    FileDescriptor file = open_in(folder, name, O_WRONLY | O_CREAT | O_EXCL, mode);
    if (file.is_open() || errno != EEXIST || tries == kMaxCreations) return file;
    if (::unlinkat(folder.get(), name.c_str(), 0) != 0 && errno != ENOENT) return {};
  }
}

FileDescriptor open_to_read(const fs::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  struct statfs holder {};
  if (!file.is_open() || ::fstat(file.get(), &info) != 0) return {};
  const bool is_pipe = ::fstatfs(file.get(), &holder) == 0 && holder.f_type == PIPEFS_MAGIC;
  if (S_ISFIFO(info.st_mode) && !is_pipe) {
    file = {};
    errno = ENXIO;
  } else if (::fcntl(file.get(), F_SETFL, 0) != 0) {
    return {};
  }
  return file;
}

std::string problem_of_open(int error) {
  if (error == ELOOP) {
    return "it is a symbolic link, which could lead a write to any file; remove the link, or link the whole "
           "folder instead";
  }
  if (error == ENXIO) return "it is a FIFO or a socket, not a file; remove it";
  return std::strerror(error);
}

}  // namespace trireme
