#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/data/byte_source.h"
#include "trireme/data/loading_report.h"
#include "trireme/data/tolerant.h"

namespace trireme::data {
namespace {

/// Of a disk or a file server that may answer when it is asked again.
bool may_answer_later(int reason) {
  return reason == EIO || reason == ESTALE || reason == ETIMEDOUT || reason == EAGAIN || reason == ENFILE ||
         reason == EMFILE || reason == ENOMEM || reason == EREMOTEIO;
}

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) fail("open", path);
    if (::fstat(fd_, &status_) == 0 && S_ISREG(status_.st_mode)) return;
    ::close(fd_);
    throw DataError(text("cannot read ", path, ": it is no regular file"));
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int fd() const { return fd_; }
  std::int64_t size() const { return status_.st_size; }
  std::string version() const {
    return text(status_.st_size, " bytes of ", status_.st_mtim.tv_sec, ".", status_.st_mtim.tv_nsec);
  }

  [[noreturn]] static void fail(const char* what, const std::string& path) {
    const int reason = errno;
    const std::string message =
        text("cannot ", what, " ", path, ": ", std::generic_category().message(reason));
    if (may_answer_later(reason)) throw ReadError(message);
    throw DataError(message);
  }

 private:
  int fd_;
  struct stat status_ {};
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
    const OpenFile file(name_);
    if (const std::string found = file.version(); found != version_) {
      throw DataError(text(name_, " has changed while it was in use: it had ", version_, ", now it has ",
                           found, "; leave the files of a data set alone, and start again"));
    }
    for (std::size_t done = 0; done < into.size();) {
      const ssize_t got = ::pread(file.fd(), into.data() + done, into.size() - done,
                                  offset + static_cast<std::int64_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) OpenFile::fail("read", name_);
      if (got == 0) {
        throw DataError(text(name_, " ends at ", offset + static_cast<std::int64_t>(done), ", and had ",
                             size_, " bytes when it was opened; it was cut while it was in use"));
      }
      done += static_cast<std::size_t>(got);
    }
  }

 private:
  std::string name_, version_;
  std::int64_t size_ = 0;
};

}  // namespace

std::shared_ptr<const ByteSource> open_file(const std::filesystem::path& path) {
  return std::make_shared<FileBytes>(path);
}

std::string read_text(const ByteSource& source, std::int64_t offset, std::int64_t size) {
  if (size < 0) size = 0;
  check_range(source, offset, static_cast<std::size_t>(size));  // before memory is taken
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
