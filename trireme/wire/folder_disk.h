#pragma once
// The Disk of a node: a folder of the file system. Appended bytes are written at once and safe after sync()
// (fdatasync, and the folder's fsync for a file that is new). replace() writes a new file that takes the
// name. Names are those of files in the folder: no "/", none that begins with a dot. Belongs to one thread;
// one process at a time works in a folder.

#include <filesystem>
#include <map>

#include "trireme/wire/node.h"
#include "trireme/wire/socket.h"

namespace trireme::wire {

class FolderDisk final : public Disk {
 public:
  /// Makes the folder. Removes the files that a dead process has left of a replace(). Throws DataError.
  explicit FolderDisk(std::filesystem::path folder);

  std::vector<std::string> names() const override;
  std::optional<std::vector<std::byte>> read(const std::string& name) const override;
  void append(const std::string& name, const std::vector<std::byte>& bytes) override;
  void sync(const std::string& name) override;
  void replace(const std::string& name, const std::vector<std::byte>& bytes) override;
  void remove(const std::string& name) override;

 private:
  struct Appended {
    Socket file;           ///< its descriptor
    bool is_new = true;    ///< its name may not be on disk yet: an earlier process may have made the file
    bool damaged = false;  ///< a write or sync has failed: the content of the disk is unknown
  };
  std::filesystem::path path_of(const std::string& name) const;
  Appended& opened(const std::string& name);

  const std::filesystem::path folder_;
  std::map<std::string, Appended> appended_;
};

}  // namespace trireme::wire
