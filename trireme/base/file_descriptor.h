#pragma once
// The owner of a file descriptor: of a file, a pipe, an event or a folder. One thread at a time.

#include <string_view>

namespace trireme {

/// A file descriptor that closes itself.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }  ///< negative: none is open
  bool is_open() const { return fd_ >= 0; }
  int release();  ///< the caller closes it
  /// Closes it now; false with errno where the system reports an error of an earlier write.
  bool close();
  /// Writes all bytes, in several calls where the system needs them; false with errno.
  bool write(std::string_view bytes) const;

 private:
  int fd_ = -1;
};

}  // namespace trireme
