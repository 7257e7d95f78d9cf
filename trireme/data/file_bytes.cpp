#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "trireme/base/disk_use.h"
#include "trireme/base/error.h"
#include "trireme/base/open_file.h"
#include "trireme/data/byte_source.h"
#include "trireme/data/loading_report.h"
#include "trireme/data/tolerant.h"

namespace trireme::data {
namespace {

/// Errors of a disk or file server that a retry may solve.
bool may_answer_later(int reason) {
  return reason == EIO || reason == ESTALE || reason == ETIMEDOUT || reason == EAGAIN || reason == ENFILE ||
         reason == EMFILE || reason == ENOMEM || reason == EREMOTEIO;
}

[[noreturn]] void fail(int reason, const std::string& what, const std::string& path) {
  const std::string message =
      text("cannot ", what, " ", path, ": ", std::generic_category().message(reason),
           reason == EMFILE ? "; raise ulimit -n, or have fewer and larger files (--shard-mib)" : "");
  if (may_answer_later(reason)) throw ReadError(message);
  throw DataError(message);
}

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : path_(path), fd_(open_to_read(path)) {
    if (const int reason = errno; !fd_.is_open() && reason != ENXIO) fail(reason, "open", path);
    if (const struct stat found = status(); S_ISREG(found.st_mode)) {
      size_ = found.st_size;
      return;
    }
    throw DataError(text("cannot read ", path, ": it is no regular file"));
  }

  std::int64_t size() const { return size_; }  ///< when it was opened
  /// The file's current size and modification time.
  std::string version() const {
    const struct stat found = status();
    return text(found.st_size, " bytes of ", found.st_mtim.tv_sec, ".", found.st_mtim.tv_nsec);
  }

  void read(std::int64_t offset, std::span<std::byte> into) const {
    while (!into.empty()) {
      const ssize_t got = ::pread(fd_.get(), into.data(), into.size(), offset);
      if (const int reason = errno; got < 0) {
        if (reason == EINTR) continue;
        fail(reason, text("read at offset ", offset, " of"), path_);
      }
      if (got == 0) {
        throw DataError(text(path_, " ends at offset ", offset, ", and had ", size_,
                             " bytes when it was opened; it was cut while it was in use"));
      }
      offset += got;
      into = into.subspan(static_cast<std::size_t>(got));
    }
  }

  /// Starts read-ahead into the page cache, and does not wait.
  void will_read(std::int64_t offset, std::int64_t size) const {
    ::posix_fadvise(fd_.get(), offset, size, POSIX_FADV_WILLNEED);
  }

  void check_version(const std::string& opened) const {
    if (const std::string found = version(); found != opened) {
      throw DataError(text(path_, " has changed while it was in use: it had ", opened, ", now it has ", found,
                           "; leave the files of a data set alone, and start again"));
    }
  }

 private:
  struct stat status() const {
    struct stat found {};
    ::fstat(fd_.get(), &found);
    return found;
  }

  std::string path_;
  FileDescriptor fd_;
  std::int64_t size_ = 0;
};

class FileBytes : public ByteSource {
 public:
  explicit FileBytes(const std::filesystem::path& path) : name_(path.string()) {
    const OpenFile file(name_);
    size_ = file.size();
    version_ = file.version();
  }
  const std::string& name() const override { return name_; }
  std::int64_t size() const override { return size_; }
  const std::string& version() const override { return version_; }

  void read(std::int64_t offset, std::span<std::byte> into) const override {
    check_range(*this, offset, into.size());
    const StageScope reading(Stage::kRead);
    count_read(into.size());
    count_disk_read(DiskUse::kData, into.size());
    const OpenFile file(name_);
    file.check_version(version_);
    file.read(offset, into);
  }

 private:
  std::string name_, version_;
  std::int64_t size_ = 0;
};

class HeldFile : public ByteSource {
 public:
  explicit HeldFile(const std::filesystem::path& path)
      : name_(path.string()), file_(name_), version_(file_.version()) {}
  const std::string& name() const override { return name_; }
  std::int64_t size() const override { return file_.size(); }
  const std::string& version() const override { return version_; }

  void read(std::int64_t offset, std::span<std::byte> into) const override {
    check_range(*this, offset, into.size());
    const StageScope reading(Stage::kRead);
    count_read(into.size());
    count_disk_read(DiskUse::kData, into.size());
    file_.read(offset, into);
  }
  void will_read(std::int64_t offset, std::int64_t size) const override { file_.will_read(offset, size); }
  void check_unchanged() const override { file_.check_version(version_); }

 private:
  const std::string name_;
  const OpenFile file_;
  const std::string version_;
};

}  // namespace

std::shared_ptr<const ByteSource> open_file(const std::filesystem::path& path) {
  return std::make_shared<FileBytes>(path);
}

std::shared_ptr<const ByteSource> hold_file(const std::filesystem::path& path) {
  return std::make_shared<HeldFile>(path);
}

std::string read_text(const ByteSource& source, std::int64_t offset, std::int64_t size) {
  if (size < 0) size = 0;
  check_range(source, offset, static_cast<std::size_t>(size));  // before memory is allocated
  std::string content(static_cast<std::size_t>(size), '\0');
  source.read(offset, std::as_writable_bytes(std::span(content)));
  return content;
}

void check_range(const ByteSource& source, std::int64_t offset, std::size_t size) {
  if (offset >= 0 && offset <= source.size() && size <= static_cast<std::size_t>(source.size() - offset))
    return;
  throw DataError(text("bytes ", offset, " to ", offset + static_cast<std::int64_t>(size), " of ",
                       source.name(), " were asked for, it has ", source.size()));
}

}  // namespace trireme::data
