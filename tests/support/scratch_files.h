#pragma once
// The scratch files (base/scratch_file.h) that a process has open, which have no names: by way of /proc. And
// a limit on how large files may become, which makes writes fail.

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::test {

/// Paths through which they can be opened.
std::vector<std::filesystem::path> scratch_files_of(pid_t process);

/// The largest file that this process may write from here on, while it lives; writes after it fail.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::uint64_t bytes);
  ~FileSizeLimit();
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  std::uint64_t before_;
  void (*handler_before_)(int);
};

}  // namespace trireme::test
