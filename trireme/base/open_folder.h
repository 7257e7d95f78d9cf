#pragma once
// An open folder. Files in it are created and replaced relative to its descriptor, with O_EXCL and
// O_NOFOLLOW: no symbolic link under a name of it, and no rename of a folder of its path, moves a write
// elsewhere. A name is one path component. Every failure is a DataError that names the path and the system's
// reason. Thread-safe as long as two callers do not write the same name.

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/base/file_descriptor.h"
#include "trireme/base/files.h"

namespace trireme {

/// Whether `name` is one path component: not empty, not "." or "..", without '/' and NUL, at most 255 bytes.
/// A name that a peer has sent is checked with it before any use.
bool is_file_name(std::string_view name);

class OpenFolder {
 public:
  /// A folder that this process names itself: symbolic links in `path` are followed. Throws DataError.
  explicit OpenFolder(const std::filesystem::path& path);

  /// A folder in this one. Throws DataError for a name that is no file name, where there is none, and for a
  /// symbolic link.
  OpenFolder folder(const std::string& name) const;
  /// Writes and syncs a file. An existing file of the name is unlinked first, a symbolic link itself and not
  /// its target. On any error no file is left. Throws DataError or the exceptions of `fill`.
  void write_synced(const std::string& name, const std::function<void(const FileSink&)>& fill) const;
  /// The same under a temporary name, which then replaces `name`; the folder is synced. On any error the old
  /// file stays.
  void write_atomic(const std::string& name, const std::function<void(const FileSink&)>& fill) const;
  /// Replaces the file at once, not synced: readers see the old or the new content, also after the end of
  /// this process. After a crash of the host the file may be gone. Costs no wait for the disk. Throws
  /// DataError.
  void replace(const std::string& name, std::string_view content) const;
  /// The list of its files is on disk when it returns.
  void sync() const;

  int fd() const { return fd_.get(); }
  /// For messages.
  const std::filesystem::path& path() const { return path_; }

 private:
  OpenFolder(FileDescriptor fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}
  enum class Durability { kSynced, kUnsynced };
  void write_or_remove(const std::string& name, const std::string& named, Durability durability,
                       const std::function<void(const FileSink&)>& fill,
                       const std::function<void()>& finish) const;
  void write_and_rename(const std::string& name, Durability durability,
                        const std::function<void(const FileSink&)>& fill) const;

  FileDescriptor fd_;  ///< O_PATH
  std::filesystem::path path_;
};

}  // namespace trireme
