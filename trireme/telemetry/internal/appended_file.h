#pragma once
// A file that only grows: each append is written as a whole before it returns, so that a killed process loses
// at most the one under way. One thread.

#include <filesystem>
#include <string_view>

namespace trireme::telemetry {

class AppendedFile {
 public:
  /// Opens or creates it. Throws DataError.
  explicit AppendedFile(const std::filesystem::path& path);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  /// Throws DataError when the disk is full or the file is gone.
  void append(std::string_view bytes);

 private:
  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace trireme::telemetry
