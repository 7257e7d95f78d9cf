#include "trireme/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/base/internal/file_failed.h"
#include "trireme/base/internal/read_beginning.h"
#include "trireme/base/open_file.h"
#include "trireme/base/open_folder.h"
#include "trireme/base/replaced_file.h"
#include "trireme/base/synced_file.h"

namespace trireme {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMinGrowth = 4096;

/// The folder of a file whose path this process has chosen.
OpenFolder folder_of(const fs::path& path) {
  try {
    return OpenFolder(path.has_parent_path() ? path.parent_path() : fs::path("."));
  } catch (const DataError& error) {
    throw DataError(text("cannot create ", path.string(), ": ", error.what()));
  }
}

}  // namespace

void sync_folder(const fs::path& folder) {
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open() || ::fsync(fd.get()) != 0) file_failed("sync the folder", folder);
}

std::string read_file(const fs::path& path) {
  return read_beginning(path, std::numeric_limits<std::ptrdiff_t>::max());
}

std::string read_beginning(const fs::path& path, std::size_t most_bytes) {
  const FileDescriptor fd = open_to_read(path);
  if (!fd.is_open() && errno == ENXIO)
    throw DataError(text("cannot open ", path.string(), ": ", problem_of_open(errno)));
  if (!fd.is_open()) file_failed("open", path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) file_failed("read", path);
  // One byte more than the file's size, so that its end is found without growing. Some files (in /proc)
  // report 0.
  std::string content(std::min(static_cast<std::size_t>(info.st_size) + 1, most_bytes), '\0');
  std::size_t end = 0;
  while (end < most_bytes) {
    if (end == content.size()) content.resize(std::min(2 * end + kMinGrowth, most_bytes));
    const ssize_t got = ::read(fd.get(), content.data() + end, content.size() - end);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) file_failed("read", path);
    if (got == 0) break;
    end += static_cast<std::size_t>(got);
  }
  content.resize(end);
  return content;
}

void write_file_synced(const fs::path& path, const std::function<void(const FileSink&)>& fill) {
  folder_of(path).write_synced(path.filename(), fill);
}

void write_file_atomic(const fs::path& path, const std::function<void(const FileSink&)>& fill) {
  folder_of(path).write_atomic(path.filename(), fill);
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  write_file_atomic(path, [&](const FileSink& sink) { sink(std::as_bytes(std::span(content))); });
}

void replace_file(const fs::path& path, std::string_view content) {
  folder_of(path).replace(path.filename(), content);
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw DataError(text("cannot create the folder ", path.string(), ": ", error.message()));
}

}  // namespace trireme
