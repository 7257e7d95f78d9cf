#pragma once
// Writes a server's partitions for a checkpoint: on a thread of its own next to the threads that
// serve, so that no request waits for a disk.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/messages.h"

namespace trireme::ps {

struct SaveOutcome {
  ErrorKind error = ErrorKind::kNone;  ///< kNotNow: too much waits already; kNotSaved
  std::string why;
  SavedPart part;
};

/// Calls of one thread. Destruction waits for the current write and drops waiting ones.
class PartSink {
 public:
  virtual ~PartSink() = default;
  /// `done` is called at most once, on any thread, and not after the destructor.
  virtual void save(PartContents part, std::function<void(SaveOutcome)> done) = 0;
};

/// Makes sinks that write with write_part() on one thread of their own, below `root`, which is made absolute
/// at this call; at most `most_waiting` parts wait.
std::function<std::unique_ptr<PartSink>()> parts_below(const std::filesystem::path& root,
                                                       std::size_t most_waiting = 64);

}  // namespace trireme::ps
