#include "trireme/base/open_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/internal/file_failed.h"

namespace trireme {
namespace fs = std::filesystem;
namespace {

constexpr off_t kHandOver = off_t{8} << 20;
constexpr int kMaxTries = 8;  // for another process that creates the file again and again

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Creates a new file. A file of that name is removed first; -1 with errno.
int create_new(int folder, const char* name) {
  for (int tries = 0;; ++tries) {
    const int fd = ::openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST || tries == kMaxTries) return fd;
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
  if (!fd_.is_open()) file_failed("open the folder", path);
}

OpenFolder OpenFolder::folder(const std::string& name) const {
  if (!is_file_name(name))
    throw DataError(
        text("'", name, "' names no folder in ", path_.string(), "; expected one path component"));
  FileDescriptor found_folder(::openat(fd(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (found_folder.is_open()) return {std::move(found_folder), path_ / name};
  struct stat found {};
  const int code = errno;
  if (::fstatat(fd(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode))
    throw DataError(text((path_ / name).string(), " is a symbolic link; expected a folder"));
  errno = code;
  file_failed("open the folder", path_ / name);
}

/// Writes a new file `name`, syncs it if requested, and calls `finish`. Any failure removes the file.
/// `named`: its name in messages.
void OpenFolder::write_or_remove(const std::string& name, const std::string& named, Durability durability,
                                 const std::function<void(const FileSink&)>& fill,
                                 const std::function<void()>& finish) const {
  const fs::path path = path_ / named;
  if (!is_file_name(name)) throw DataError(text("cannot create ", path.string(), ": it names no file"));
  FileDescriptor file(create_new(fd(), name.c_str()));
  if (!file.is_open()) file_failed("create", path_ / name);
  try {
    off_t written = 0, handed_over = 0;
    fill([&](std::span<const std::byte> bytes) {
      if (!file.write(as_text(bytes))) file_failed("write", path);
      written += static_cast<off_t>(bytes.size());
      if (written - handed_over < kHandOver) return;
      // Begins the write to disk, so that less is left for the sync at the end. This is a hint, which may
      // fail.
      ::sync_file_range(file.get(), handed_over, written - handed_over, SYNC_FILE_RANGE_WRITE);
      handed_over = written;
    });
    if (durability == Durability::kSynced && ::fsync(file.get()) != 0) file_failed("sync", path);
    if (!file.close()) file_failed("close", path);
    finish();
  } catch (...) {
    ::unlinkat(fd(), name.c_str(), 0);
    throw;
  }
}

void OpenFolder::write_synced(const std::string& name,
                              const std::function<void(const FileSink&)>& fill) const {
  write_or_remove(name, name, Durability::kSynced, fill, [] {});
}

void OpenFolder::write_and_rename(const std::string& name, Durability durability,
                                  const std::function<void(const FileSink&)>& fill) const {
  const std::string temporary = name + ".part" + std::to_string(::getpid());
  if (!is_file_name(name))
    throw DataError(text("cannot create ", (path_ / name).string(), ": it names no file"));
  write_or_remove(temporary, name, durability, fill, [&] {
    if (::renameat(fd(), temporary.c_str(), fd(), name.c_str()) != 0) file_failed("rename to", path_ / name);
  });
}

void OpenFolder::write_atomic(const std::string& name,
                              const std::function<void(const FileSink&)>& fill) const {
  write_and_rename(name, Durability::kSynced, fill);
  sync();
}

void OpenFolder::replace(const std::string& name, std::string_view content) const {
  write_and_rename(name, Durability::kUnsynced,
                   [&](const FileSink& sink) { sink(std::as_bytes(std::span(content))); });
}

void OpenFolder::sync() const {
  const FileDescriptor folder(::openat(fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open() || ::fsync(folder.get()) != 0) file_failed("sync the folder", path_);
}

}  // namespace trireme
