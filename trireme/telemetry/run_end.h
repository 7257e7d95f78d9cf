#pragma once
// End of a run: end.json in its folder. A run writes it when it fails, too, so the folder later has the
// message of the screen. A process that is killed writes nothing: the kernel releases the lock of its folder,
// which shows its end. Functions without state; thread-safe.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trireme/base/run_main.h"

namespace trireme::telemetry {

struct RunEnd {
  std::string status;   ///< "completed", "stopped", "interrupted", "diverged", "rejected", "failed"
  int exit_code = 0;    ///< of the process that wrote the run
  std::string message;  ///< of the error; empty when there was none
  std::int64_t steps = 0;
};

/// Records that an error has ended the run after that many steps, on the calling rank. An existing record
/// stays, be it another rank's error or a good end. Only a record of lost ranks (kExitComm) is replaced by
/// their error. Call it before the others can notice that this rank ends. Throws DataError.
void write_failure(const std::filesystem::path& path, const Failure& failure, std::int64_t steps);

/// Atomically. Throws DataError.
void write_run_end(const std::filesystem::path& path, const RunEnd& end);
/// Empty when there is no such file. Throws DataError that names it when its content is malformed.
std::optional<RunEnd> read_run_end(const std::filesystem::path& path);

/// Owner of the lock of a run's folder.
struct LockHolder {
  enum class State {
    kAlive,
    kGone,     ///< it has ended, however it did
    kUnknown,  ///< there is no lock, or it was another host's, whose locks may not be seen here
  } state = State::kUnknown;
  std::string who;  ///< "process 4711 on node1 since 2026-11-21T00:03:00Z"; empty when that is not known
};

/// Asks for the lock for an instant: a run that begins at that moment tries again.
LockHolder holder_of(const std::filesystem::path& lock);

/// The id of the start (TRIREME_START_ID) that the run in the folder belongs to, from its lock; empty where
/// there is none.
std::string start_of_run(const std::filesystem::path& folder);

}  // namespace trireme::telemetry
