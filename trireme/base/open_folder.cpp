#include "trireme/base/open_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/internal/descriptor.h"

namespace trireme {
namespace fs = std::filesystem;
namespace {

constexpr off_t kHandOver = off_t{8} << 20;
constexpr int kMostTries = 8;  // where another process puts a file under the name again and again

void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) file_failed("write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

/// A new file, whatever stood under the name; -1 with errno.
int create_new(int folder, const char* name) {
  for (int tries = 0;; ++tries) {
    const int fd = ::openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST || tries == kMostTries) return fd;
    if (::unlinkat(folder, name, 0) != 0 && errno != ENOENT) return -1;
  }
}

}  // namespace

bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= NAME_MAX &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

OpenFolder::OpenFolder(const fs::path& path)
    : fd_(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)), path_(path) {
  if (fd_ < 0) file_failed("open the folder", path);
}

OpenFolder::~OpenFolder() {
  if (fd_ >= 0) ::close(fd_);
}

OpenFolder::OpenFolder(OpenFolder&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

OpenFolder& OpenFolder::operator=(OpenFolder&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

OpenFolder OpenFolder::folder(const std::string& name) const {
  if (!is_file_name(name))
    throw DataError(
        text("'", name, "' names no folder in ", path_.string(), "; expected one path component"));
  const int fd = ::openat(fd_, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0) return {fd, path_ / name};
  struct stat found {};
  const int code = errno;
  if (::fstatat(fd_, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode))
    throw DataError(text((path_ / name).string(), " is a symbolic link; expected a folder"));
  errno = code;
  file_failed("open the folder", path_ / name);
}

/// Writes a new file `name` and syncs it; then `finish`. Where any of that fails, the file goes again.
/// `named` is what messages call it.
void OpenFolder::write_or_remove(const std::string& name, const std::string& named,
                                 const std::function<void(const FileSink&)>& fill,
                                 const std::function<void()>& finish) const {
  const fs::path path = path_ / named;
  if (!is_file_name(name)) throw DataError(text("cannot create ", path.string(), ": it names no file"));
  Descriptor fd(create_new(fd_, name.c_str()));
  if (fd.get() < 0) file_failed("create", path_ / name);
  try {
    off_t written = 0, handed_over = 0;
    fill([&](std::span<const std::byte> bytes) {
      write_all(fd.get(), bytes, path);
      written += static_cast<off_t>(bytes.size());
      if (written - handed_over < kHandOver) return;
      // The disk begins at once, so that less is left for the sync at the end; a hint, which may fail.
      ::sync_file_range(fd.get(), handed_over, written - handed_over, SYNC_FILE_RANGE_WRITE);
      handed_over = written;
    });
    if (::fsync(fd.get()) != 0) file_failed("sync", path);
    if (!fd.close()) file_failed("close", path);
    finish();
  } catch (...) {
    ::unlinkat(fd_, name.c_str(), 0);
    throw;
  }
}

void OpenFolder::write_synced(const std::string& name,
                              const std::function<void(const FileSink&)>& fill) const {
  write_or_remove(name, name, fill, [] {});
}

void OpenFolder::write_atomic(const std::string& name,
                              const std::function<void(const FileSink&)>& fill) const {
  const std::string temporary = name + ".part" + std::to_string(::getpid());
  if (!is_file_name(name))
    throw DataError(text("cannot create ", (path_ / name).string(), ": it names no file"));
  write_or_remove(temporary, name, fill, [&] {
    if (::renameat(fd_, temporary.c_str(), fd_, name.c_str()) != 0) file_failed("rename to", path_ / name);
  });
  sync();
}

void OpenFolder::sync() const {
  const Descriptor fd(::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) file_failed("sync the folder", path_);
}

}  // namespace trireme
