#include "trireme/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/synced_file.h"

namespace trireme {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kLeastGrowth = 4096;
constexpr off_t kHandOver = off_t{8} << 20;

[[noreturn]] void fail(std::string_view what, const fs::path& path) {
  const int code = errno;
  std::string advice;
  if (code == ENOSPC) advice = "; free some space there and run again";
  throw DataError(text("cannot ", what, " ", path.string(), ": ", std::strerror(code), advice));
}

/// A file descriptor that closes itself.
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

void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

/// Writes `path` and syncs it; then `finish`. Where any of that fails, the file goes again. `named` is what
/// messages call it.
void write_or_remove(const fs::path& path, const fs::path& named,
                     const std::function<void(const FileSink&)>& fill, const std::function<void()>& finish) {
  try {
    Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (fd.get() < 0) fail("create", path);
    off_t written = 0, handed_over = 0;
    fill([&](std::span<const std::byte> bytes) {
      write_all(fd.get(), bytes, named);
      written += static_cast<off_t>(bytes.size());
      if (written - handed_over < kHandOver) return;
      // The disk begins at once, so that less is left for the sync at the end; a hint, which may fail.
      ::sync_file_range(fd.get(), handed_over, written - handed_over, SYNC_FILE_RANGE_WRITE);
      handed_over = written;
    });
    if (::fsync(fd.get()) != 0) fail("sync", named);
    if (!fd.close()) fail("close", named);
    finish();
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

}  // namespace

void sync_folder(const fs::path& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) fail("sync the folder", folder);
}

std::string read_file(const fs::path& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) fail("open", path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail("read", path);
  // One byte more than the file says, so that its end is seen without growing; some files (in /proc) say 0.
  std::string content(static_cast<std::size_t>(info.st_size) + 1, '\0');
  std::size_t end = 0;
  for (;;) {
    if (end == content.size()) content.resize(2 * end + kLeastGrowth);
    const ssize_t got = ::read(fd.get(), content.data() + end, content.size() - end);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", path);
    if (got == 0) break;
    end += static_cast<std::size_t>(got);
  }
  content.resize(end);
  return content;
}

void write_file_synced(const fs::path& path, const std::function<void(const FileSink&)>& fill) {
  write_or_remove(path, path, fill, [] {});
}

void write_file_atomic(const fs::path& path, const std::function<void(const FileSink&)>& fill) {
  const fs::path temporary = path.string() + ".part" + std::to_string(::getpid());
  write_or_remove(temporary, path, fill, [&] {
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename to", path);
  });
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  write_file_atomic(path, [&](const FileSink& sink) { sink(std::as_bytes(std::span(content))); });
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw DataError(text("cannot create the folder ", path.string(), ": ", error.message()));
}

}  // namespace trireme
