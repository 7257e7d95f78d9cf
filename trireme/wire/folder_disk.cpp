#include "trireme/wire/folder_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/synced_file.h"

namespace trireme::wire {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUnfinished = ".part";  // the suffix of unfinished files in base/files.h

[[noreturn]] void disk_failed(const char* what, const fs::path& path, int error) {
  const char* advice = error == ENOSPC ? "; free some space there and run again" : "";
  throw DataError(text("cannot ", what, " ", path.string(), ": ", std::strerror(error), advice));
}

}  // namespace

FolderDisk::FolderDisk(fs::path folder) : folder_(std::move(folder)) {
  make_folder(folder_);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename().string().find(kUnfinished) != std::string::npos) fs::remove(entry.path());
  }
}

std::vector<std::string> FolderDisk::names() const {
  std::vector<std::string> result;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.is_regular_file()) result.push_back(entry.path().filename().string());
  }
  std::ranges::sort(result);
  return result;
}

std::optional<std::vector<std::byte>> FolderDisk::read(const std::string& name) const {
  const fs::path path = path_of(name);
  if (!fs::exists(path)) return std::nullopt;
  const std::string content = read_file(path);
  const auto bytes = std::as_bytes(std::span(content));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

void FolderDisk::append(const std::string& name, const std::vector<std::byte>& bytes) {
  Appended& to = opened(name);
  std::span<const std::byte> left(bytes);
  while (!left.empty()) {
    const ssize_t written = ::write(to.file.fd(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      to.damaged = left.size() < bytes.size();  // part of the record was written
      disk_failed("append to", path_of(name), error);
    }
    left = left.subspan(static_cast<std::size_t>(written));
  }
}

void FolderDisk::sync(const std::string& name) {
  Appended& file = opened(name);
  if (::fdatasync(file.file.fd()) != 0) {
    // The kernel may have dropped the pages that it could not write: a second sync would report success.
    file.damaged = true;
    disk_failed("sync", path_of(name), errno);
  }
  if (file.is_new) sync_folder(folder_);
  file.is_new = false;
}

void FolderDisk::replace(const std::string& name, const std::vector<std::byte>& bytes) {
  appended_.erase(name);
  write_file_atomic(path_of(name), [&](const FileSink& sink) { sink(bytes); });
}

void FolderDisk::remove(const std::string& name) {
  appended_.erase(name);
  const fs::path path = path_of(name);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) disk_failed("remove", path, errno);
  sync_folder(folder_);
}

fs::path FolderDisk::path_of(const std::string& name) const {
  const bool plain = !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
                     name.find(kUnfinished) == std::string::npos && name.find('\0') == std::string::npos;
  require(plain, "'", name, "' is no name of a node's file; expected one without '/', '", kUnfinished,
          "' and a dot in front");
  return folder_ / name;
}

FolderDisk::Appended& FolderDisk::opened(const std::string& name) {
  const fs::path path = path_of(name);
  const auto found = appended_.find(name);
  if (found != appended_.end()) {
    if (!found->second.damaged) return found->second;
    throw DataError(
        text("an earlier write to ", path.string(),
             " has failed, and what of it is on disk is not known: read it again and replace it"));
  }
  Appended file;
  file.file = Socket(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.file.fd() < 0) disk_failed("open", path, errno);
  return appended_.insert_or_assign(name, std::move(file)).first->second;
}

}  // namespace trireme::wire
