#pragma once
// A file that only grows: each append is written as a whole before it returns, so that a killed process loses
// at most the one under way. One thread.

#include <filesystem>
#include <string_view>

#include "trireme/base/open_file.h"

namespace trireme::telemetry {

class AppendedFile {
 public:
  /// Opens or creates it. Throws DataError, also for a symbolic link in its place.
  explicit AppendedFile(const std::filesystem::path& path);

  /// Throws DataError when the disk is full or the file is gone.
  void append(std::string_view bytes);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace trireme::telemetry
