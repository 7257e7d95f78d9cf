#pragma once
// Metrics as JSON lines, one object per record, appended with one write each: a reader never sees half a line
// of a living run, and a killed run loses at most the line under way. One thread.

#include <cstdint>
#include <filesystem>
#include <memory>

#include "trireme/telemetry/sink.h"

namespace trireme::telemetry {

class AppendedFile;

class JsonlSink : public Sink {
 public:
  /// Opens or creates the file for appending. Throws DataError.
  explicit JsonlSink(const std::filesystem::path& path);
  ~JsonlSink() override;

  /// Throws DataError when the disk is full or the file is gone.
  void write(const Record& record) override;

 private:
  std::unique_ptr<AppendedFile> file_;
};

/// Drops the lines whose "step" is above `last_step`, and lines that are no JSON: a resumed run writes them
/// again. No effect when the file is not there. Throws DataError.
void drop_lines_after(const std::filesystem::path& path, std::int64_t last_step);

}  // namespace trireme::telemetry
