#include "trireme/base/scratch_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "trireme/base/disk_use.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {
namespace fs = std::filesystem;
namespace {

/// The folder, or its nearest ancestor that exists: on the same file system, and writable if the folder could
/// be created. The folder is not created for a file without a name. It would have to be removed again, while
/// other ranks use it.
fs::path nearest_that_exists(const fs::path& folder) {
  std::error_code ignored;
  fs::path nearest = fs::absolute(folder);
  while (nearest.has_relative_path() && !fs::exists(nearest, ignored)) nearest = nearest.parent_path();
  return nearest;
}

/// A new file without a name; not open, with errno, on failure.
FileDescriptor open_nameless(const fs::path& folder) {
  std::string name = (folder / "trireme-scratch-XXXXXX").string();
  FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.is_open()) ::unlink(name.c_str());
  return file;
}

std::string free_in_words(int descriptor) {
  struct statvfs info {};
  if (::fstatvfs(descriptor, &info) != 0) return "an unknown number";
  return text(static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize);
}

}  // namespace

ScratchFile::ScratchFile(const Options& options)
    : folder_(options.folder), owner_(options.owner), purpose_(options.purpose) {
  descriptor_ = open_nameless(nearest_that_exists(folder_));
  if (!descriptor_.is_open()) fail("create the storage", errno);
  reserve(options.bytes);
}

std::uint64_t ScratchFile::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ScratchFile::reserve(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes <= bytes_) return;
  int code = EINTR;
  while (code == EINTR)
    code =
        ::posix_fallocate(descriptor_.get(), static_cast<off_t>(bytes_), static_cast<off_t>(bytes - bytes_));
  if (code != 0) {
    const std::string free = free_in_words(descriptor_.get());
    // Frees the space that was reserved before the failure, for other processes.
    const bool is_given_back = ::ftruncate(descriptor_.get(), static_cast<off_t>(bytes_)) == 0;
    fail(text("reserve ", bytes - bytes_, " bytes, of which ", free, " are free,",
              is_given_back ? "" : " (and give back the part that was reserved)"),
         code);
  }
  bytes_ = bytes;
}

void ScratchFile::read(std::uint64_t offset, std::span<std::byte> into) const {
  const std::string what = text("read ", into.size(), " bytes at ", offset);
  count_disk_read(DiskUse::kOffload, into.size());
  while (!into.empty()) {
    const ssize_t got = ::pread(descriptor_.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(what, errno);
    if (got == 0) {
      throw DataError(text(owner_, ": cannot ", what, " of ", purpose_, " in a file of ", folder_.string(),
                           ": it is shorter than it was made: another process has truncated it"));
    }
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void ScratchFile::write(std::uint64_t offset, std::span<const std::byte> from) {
  const std::string what = text("write ", from.size(), " bytes at ", offset);
  count_disk_write(DiskUse::kOffload, from.size());
  while (!from.empty()) {
    const ssize_t put = ::pwrite(descriptor_.get(), from.data(), from.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(what, errno);
    from = from.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

void ScratchFile::fail(const std::string& operation, int code) const {
  const char* advice =
      code == ENOSPC || code == EDQUOT ? "; free some space there, or name a folder on another disk" : "";
  throw DataError(text(owner_, ": cannot ", operation, " of ", purpose_, " in a file of ", folder_.string(),
                       ": ", std::strerror(code), advice));
}

}  // namespace trireme
