#pragma once
// A lock between processes, and threads, by a file: gone with the process that holds it. Not for files on
// which lives depend: whoever cannot have it goes on without.

#include <filesystem>

namespace trireme::data {

class FileLock {
 public:
  /// Waits for it so long at most. Creates the file where it can.
  FileLock(const std::filesystem::path& path, double wait_s);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return held_; }
  /// Why the file cannot be opened; 0: it is open.
  int error() const { return error_; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1, error_ = 0;
  bool held_ = false;
};

}  // namespace trireme::data
