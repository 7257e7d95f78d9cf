#pragma once
// A stream to the end of a file. Flushed text is in the file; a killed process loses the rest. One thread.

#include <filesystem>
#include <memory>
#include <ostream>

namespace trireme::telemetry {

class AppendStream : public std::ostream {
 public:
  /// Opens or creates the file. Throws DataError, also for a symbolic link in its place. A later write that
  /// fails (disk full) sets std::ios::badbit.
  explicit AppendStream(const std::filesystem::path& path);
  ~AppendStream() override;
  AppendStream(const AppendStream&) = delete;
  AppendStream& operator=(const AppendStream&) = delete;

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace trireme::telemetry
