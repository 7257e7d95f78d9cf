#pragma once
// Scalars for TensorBoard: each number of a record that has a "step" becomes the scalar "EVENT/FIELD", such
// as step/loss and eval/test_accuracy. The file is a sequence of records of TensorFlow's TFRecord format
// (length, masked CRC-32C of it, payload, masked CRC-32C of that; all little endian), each payload a
// protocol-buffer message Event (tensorflow/core/util/event.proto, summary.proto) of which we encode six
// fields by hand: docs/adr/0005. One thread.

#include <cstdint>
#include <filesystem>
#include <memory>

#include "trireme/telemetry/sink.h"

namespace trireme::telemetry {

class AppendedFile;

class TensorboardSink : public Sink {
 public:
  /// Begins a new file events.out.tfevents.TIME.trireme in the folder, which is made. Throws DataError.
  explicit TensorboardSink(const std::filesystem::path& folder);
  ~TensorboardSink() override;

  /// Throws DataError when the disk is full or the file is gone.
  void write(const Record& record) override;

 private:
  std::unique_ptr<AppendedFile> file_;
};

/// Drops the events whose step is above `last_step`, and incomplete events, from the files of the folder: a
/// resumed run writes them again. No effect when the folder is not there. Throws DataError.
void drop_events_after(const std::filesystem::path& folder, std::int64_t last_step);

}  // namespace trireme::telemetry
