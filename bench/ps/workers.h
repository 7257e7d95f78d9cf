#pragma once
// Workers of a cluster as processes of their own, which do a job when they are told to and say how long it
// took. A job is repeated operations of one kind: the table of them is in workers.cpp.

#include <list>
#include <string>
#include <vector>

#include "bench/ps/cluster.h"

namespace trireme::bench {

enum class Operation : int { kPush, kPull, kPushPull, kStep, kPushRows, kPullRows };
const char* name_of(Operation operation);

struct Job {
  Operation operation = Operation::kPush;
  std::uint64_t bytes = 0;  ///< of a dense table, all of which is pushed or pulled each time
  int count = 1, in_flight = 1;
  std::uint64_t num_rows = 0;  ///< of a sparse one of 16 f32; a count is a batch of 8192 keys
  char codec[16] = "none";     ///< of pushes
};
inline constexpr std::uint64_t kRowElements = 16, kBatchRows = 8192;

struct Timing {
  double seconds = 0;  ///< from the start of the first worker to the end of the last
  double p50_s = 0;    ///< of one operation, of the first worker: from its call to its end
  double cpu_s = 0;    ///< of all workers
};

class Workers {
 public:
  /// Made while the process has one thread.
  Workers(const Cluster& cluster, int count);
  ~Workers();
  /// All do the same at the same time. What the job needs, tables among it, is made first. Throws CommError
  /// where a worker has failed; it has said why.
  Timing run(const Job& job);

 private:
  struct Answer;
  std::vector<Answer> answers();

  std::vector<int> sockets_;
  std::list<Child> processes_;
};

}  // namespace trireme::bench
