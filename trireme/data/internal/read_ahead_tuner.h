#pragma once
// Chooses the number of loading threads and of steps to read ahead from measurements: pure arithmetic on
// consecutive windows of time. If steps wait and all threads are busy, it adds a thread. It removes this
// thread again if batches do not come faster: the disk or the cores are the limit. If steps wait and threads
// are idle, batches take unequally long. It then reads further ahead, within the memory limit. It removes a
// thread that has been idle for long.

#include <cstdint>
#include <string>

namespace trireme::data {

struct ReadAhead {
  int workers = 1;
  int prefetch = 4;  ///< steps
};

struct ReadAheadLimits {
  int max_workers = 1;
  std::int64_t memory_bytes = 0;  ///< of steps that were read ahead
};

/// Measurements of a stretch of time.
struct LoadingWindow {
  double wall_s = 0;
  double waited_s = 0;  ///< for data
  double busy_s = 0;    ///< of all workers
  std::int64_t steps = 0;
  std::int64_t bytes_of_step = 0;  ///< in memory
};

class ReadAheadTuner {
 public:
  ReadAheadTuner(ReadAhead start, ReadAheadLimits limits) : now_(start), limits_(limits) {}

  const ReadAhead& now() const { return now_; }
  /// Why `now()` changed, with the numbers; empty when it did not.
  std::string look(const LoadingWindow& window);

 private:
  std::string add_worker(const LoadingWindow& window);
  std::string judge_added(const LoadingWindow& window);

  ReadAhead now_;
  ReadAheadLimits limits_;
  bool just_added_ = false;
  double rate_before_ = 0;   ///< steps/s with one worker fewer
  int useless_from_ = 0;     ///< so many workers were no faster than one fewer; 0: not known
  double useless_rate_ = 0;  ///< the rate at which that was found
  int idle_windows_ = 0;
};

}  // namespace trireme::data
