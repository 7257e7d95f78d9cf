#pragma once
// One run of a cluster under faults, determined by a seed. Workers push integers as floats and check every
// pull against all pushes. Meanwhile servers crash, freeze, are disconnected, join and leave, and the
// coordinator forgets unsynced changes. Returns the first error, or nothing.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/ps/cluster.h"

namespace trireme::ps {

struct FaultRunOptions {
  int num_faults = 4;
  std::uint32_t num_replicas = 2;
  bool single_messages = false;  ///< also drops, duplicates and reorders messages of an open connection
};

class FaultRun {
 public:
  explicit FaultRun(std::uint64_t seed, FaultRunOptions options = {});

  /// Empty if all invariants held.
  std::string run();
  std::uint64_t trace_hash() const { return cluster_.simulation.trace_hash(); }
  std::uint64_t num_events() const { return cluster_.simulation.num_events(); }

 private:
  static constexpr double kPatience_s = 120;  ///< of virtual time, until everything must be restored
  /// Chunks of a dense table, then rows of a sparse one.
  // Lossy pushes at least identify their worker.
  static constexpr float kMark = 8192;
  static constexpr int kChunks = 5, kRows = 5, kPlaces = kChunks + kRows, kElements = 6;

  struct Push {
    int worker = 0;
    Incarnation incarnation = 0;
    WorkerClock clock = 0;
    int place = 0;
    std::vector<float> values;  ///< that arrive: includes the residual of earlier pushes, but not the new one
    bool is_acknowledged = false;
  };
  /// The state of one life of a worker, shared with the callbacks of that life.
  struct Life {
    int worker = 0;
    Incarnation incarnation = 0;
    bool has_ended = false, is_done = false;
  };

  void begin_life(int worker);
  void do_step(const std::shared_ptr<Life>& life);
  /// The value that counts a push at a place.
  float mark(int place) const { return place < kChunks && spec_.compression.push == "top-k" ? kMark : 1; }
  Push& new_push(const Life& life, int place);
  void push_chunks(const std::shared_ptr<Life>& life);
  void push_rows(const std::shared_ptr<Life>& life);
  void push_passing_rows(const std::shared_ptr<Life>& life);
  void restore_passing_rows(const std::shared_ptr<Life>& life);
  void pull(int worker, int place, const std::function<void(const Result&, std::vector<float>)>& done);
  void pull_then_go_on(const std::shared_ptr<Life>& life, int place);
  void check_pull(const Life& life, int place, WorkerClock clock, std::size_t num_own,
                  const std::vector<float>& values);
  void on_error(const std::shared_ptr<Life>& life, const Result& result);
  void fail(const std::string& what);

  void inject();
  void crash_server();
  void freeze_server();
  void cut_link();
  void cut_off_coordinator();
  void restart_coordinator();
  void server_comes_or_goes();
  void crash_worker();
  void lose_messages();
  bool has_copies();
  bool wait_for_copies();
  void compare_replicas(bool at_rest);
  void check_sums();
  std::vector<std::string> servers() const;

  std::uint64_t seed_;
  FaultRunOptions options_;
  Random random_;
  Cluster cluster_;
  TableSpec spec_;
  TableId table_ = 0;
  TableId rows_ = 0;     ///< every key keeps its row, so that sums are exact
  TableId passing_ = 0;  ///< keys are admitted and evicted; replicas agree on the set
  std::vector<std::shared_ptr<Life>> lives_;
  WorkerClock last_clock_ = UINT64_MAX;  ///< at which workers end; set when there are no more faults
  std::vector<Push> pushes_;
  std::map<std::pair<int, int>, std::vector<std::size_t>> pushes_of_;  ///< by worker and place
  int num_restarts_ = 0;                                               ///< pending restarts of workers
  std::string failure_;
};

}  // namespace trireme::ps
