#pragma once
// The unnamed scratch files (base/scratch_file.h) that a process has open, found through /proc. And a limit
// on the size of files, which makes writes fail.

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::test {

/// Paths through which the files can be opened.
std::vector<std::filesystem::path> scratch_files_of(pid_t process);

/// Limits the size of files that this process writes while the object exists. Larger writes fail.
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
