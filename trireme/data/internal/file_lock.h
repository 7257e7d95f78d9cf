#pragma once
// A lock between processes, and threads, by a file: released with the process that holds it. Only for
// optional work: a process without the lock continues without it.

#include <filesystem>

#include "trireme/base/open_file.h"

namespace trireme::data {

class FileLock {
 public:
  /// Waits for it so long at most. Creates the file where it can; a symbolic link in its place is not
  /// followed.
  FileLock(const std::filesystem::path& path, double wait_s);
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return held_; }
  /// Why the file cannot be opened; 0: it is open.
  int error() const { return error_; }
  int fd() const { return file_.get(); }

 private:
  FileDescriptor file_;
  int error_ = 0;
  bool held_ = false;
};

}  // namespace trireme::data
