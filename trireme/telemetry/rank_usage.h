#pragma once
// Use of a rank's time and resources so far: a part of its status page (status_page.h). `trireme top` and the
// launcher's metrics read two such states and show the difference. The main thread of the rank writes its
// activities and waits, any of its threads may count; any process reads. A writer never blocks and allocates
// nothing.

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "trireme/base/disk_use.h"
#include "trireme/base/memory_ledger.h"

namespace trireme::telemetry {

/// Activity of the main thread of a rank.
enum class Activity : std::uint8_t {
  kOther,
  kData,  ///< waiting for the next batch
  kForward,
  kBackward,
  kTransfer,   ///< activations and their gradients between stages
  kWeights,    ///< gathering sharded weights, and freeing them
  kGradients,  ///< reducing them
  kUpdate,     ///< the optimizer, with its related work
  kEvaluation,
  kCheckpoint,
};
/// How many there are: the length of arrays that an Activity indexes.
inline constexpr std::size_t kNumActivities = 10;
/// "other", "data", "forward", ...
const char* name_of(Activity activity);

/// From one transition to the next.
struct ActivitySpan {
  std::int64_t begin_ns = 0;  ///< on the monotonic clock of the host
  Activity activity = Activity::kOther;
  bool waits = false;   ///< for other ranks
  int microbatch = -1;  ///< -1: none
};

/// A state of it.
struct Usage {
  int pid = 0;         ///< of the process that writes the page, as it numbers itself; 0: none does
  int world_size = 0;  ///< 0: not known
  int role = 0;        ///< its stage of the pipeline: ranks of one role have the same work
  std::array<std::int64_t, kNumActivities> spent_ns = {};   ///< by Activity, with waits, up to `now.begin_ns`
  std::array<std::int64_t, kNumActivities> waited_ns = {};  ///< of them, for other ranks
  ActivitySpan now = {};                                    ///< current activity and its start
  std::vector<ActivitySpan> spans = {};                     ///< the last ones, oldest first, `now` last
  double loader_fill = 0;           ///< the shares of the read-ahead that steps found, added up
  std::int64_t loader_batches = 0;  ///< steps in that sum
  int loader_depth = 0;             ///< steps read ahead, at present; 0: not known
  std::uint64_t sent_bytes = 0;     ///< of tensors that this rank gave to operations between ranks
  MemoryUse memory = {};            ///< of this process, when its total was largest
  MemoryUse device_memory = {};     ///< the same of its device; 0: none
  std::array<DiskBytes, kNumDiskUses> disk = {};  ///< by DiskUse

  /// Seconds in the activity without waiting for other ranks, up to `now.begin_ns`.
  double worked_s(Activity activity) const {
    const auto at = static_cast<std::size_t>(activity);
    return 1e-9 * static_cast<double>(spent_ns[at] - waited_ns[at]);
  }
};

class RankUsage {
 public:
  /// The calling thread is the rank's main thread from now on, and starts in kOther.
  void begin(int world_size);
  void set_role(int stage) { role_.store(stage, std::memory_order_relaxed); }

  /// Main thread. Also brings the counters of the process up to date.
  void enter(Activity activity, int microbatch = -1);
  /// Other threads' waits do not count: they run concurrently with the main thread.
  void begin_wait();
  void end_wait();

  /// `fill`: the shares of the read-ahead that `batches` steps found, added up.
  void set_loader(double fill, std::int64_t batches, int depth);
  /// When the total of the device was largest.
  void set_device_memory(const MemoryUse& memory);
  /// Any thread.
  void count_sent(std::uint64_t bytes) { sent_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  /// A state that is not torn, unless the writer was killed in the middle of a transition.
  Usage read() const;

 private:
  static constexpr std::size_t kNumSpans = 64;
  using Number = std::atomic<std::int64_t>;

  bool is_main_thread() const;
  void change(Activity activity, bool waits, int microbatch);
  bool read_times(Usage& usage) const;
  void publish_counters();

  Number pid_{0}, world_size_{0}, role_{0};
  std::atomic<std::uint64_t> main_thread_{0};  ///< as pthread_self() gives it
  Number depth_{0};                            ///< of nested waits
  std::atomic<std::uint64_t> sequence_{0};     ///< of the later members: odd while a transition is written
  std::array<Number, kNumActivities> spent_ns_{}, waited_ns_{};
  std::atomic<std::uint64_t> num_spans_{0};
  std::array<Number, kNumSpans> begins_ns_{};
  std::array<std::atomic<std::uint64_t>, kNumSpans> states_{};  ///< packed: see pack()
  std::atomic<double> loader_fill_{0};
  Number loader_batches_{0}, loader_depth_{0};
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::array<Number, kNumMemoryKinds> memory_{}, device_memory_{};
  std::array<std::atomic<std::uint64_t>, kNumDiskUses> disk_read_{}, disk_written_{};
};

/// While it lives, the rank waits for others, if the thread is its main thread.
class WaitForOthers {
 public:
  explicit WaitForOthers(RankUsage& usage) : usage_(usage) { usage_.begin_wait(); }
  ~WaitForOthers() { usage_.end_wait(); }
  WaitForOthers(const WaitForOthers&) = delete;
  WaitForOthers& operator=(const WaitForOthers&) = delete;

 private:
  RankUsage& usage_;
};

}  // namespace trireme::telemetry
