#include "trireme/checkpoint/background_saver.h"

#include <ATen/ops/empty_like.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

/// Longer than any working disk needs for one checkpoint.
constexpr double kLongestWrite_s = 1800;
/// Woken by notify. A wake-up that the C library loses costs this much, not the run.
constexpr double kIdleWait_s = 60;
/// How long a run that ends waits for parts of other ranks. They end, too, and finish writes that have begun.
constexpr double kLastParts_s = 5;
/// Interval between checks for the parts of other ranks.
constexpr double kLook_s = 0.005;

bool lies_flat_in_memory(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous();
}

/// Copies into memory that all saves reuse. Page faults of new memory would cost more than the copy itself.
class Copier {
 public:
  Shards copy(Shards shards) {
    for (Shard& shard : shards) {
      if (!shard.offloaded_storage) shard.tensor = copy({shard.name, shard.offsets}, shard.tensor);
    }
    return shards;
  }

 private:
  using Key = std::pair<std::string, std::vector<std::int64_t>>;

  at::Tensor copy(const Key& key, const at::Tensor& tensor) {
    if (!lies_flat_in_memory(tensor)) return tensor.detach().cpu().clone();
    at::Tensor& kept = kept_[key];
    if (!kept.defined() || kept.sizes() != tensor.sizes() || kept.scalar_type() != tensor.scalar_type())
      kept = at::empty_like(tensor.detach());
    std::memcpy(kept.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
    return kept;
  }

  std::map<Key, at::Tensor> kept_;
};

/// Copies device tensors on the caller's thread: the copy has to be ordered after work on the device.
void fetch_from_devices(Shards& shards) {
  for (Shard& shard : shards) {
    if (!shard.tensor.device().is_cpu() && !shard.offloaded_storage)
      shard.tensor = shard.tensor.detach().cpu();
  }
}

}  // namespace

struct BackgroundSaver::State {
  struct Job {
    CheckpointPart part;
    std::vector<Destination> destinations;
  };
  enum class Stage { kIdle, kCopying, kWriting, kFinishing };

  explicit State(telemetry::Trace* of_run) : trace(of_run) {}

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  void work() {
    ::pthread_setname_np(::pthread_self(), "checkpoint");
    if (trace != nullptr) spans = &trace->add_thread("checkpoint");
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait_until(lock, Deadline::after_s(kIdleWait_s).at(),
                         [&] { return stopping || job.has_value(); });
      if (!job && stopping) return;
      if (!job) continue;
      Job mine = *std::exchange(job, std::nullopt);
      lock.unlock();
      run(std::move(mine));
      lock.lock();
      set(Stage::kIdle);
    }
  }

  void run(Job mine) {
    const bool written = write(mine);
    if (mine.part.number != 0) return;
    move_on_to(Stage::kFinishing);
    finish(mine, written);
  }

  /// False after a failure, which is then recorded in every destination without a part.
  bool write(Job& mine) {
    auto next = mine.destinations.begin();
    try {
      copy(mine.part);
      const telemetry::TraceScope span(spans, "checkpoint", "write", {"step", mine.part.head.step});
      for (; next != mine.destinations.end(); ++next) write_part(next->folder, mine.part);
      move_on_to(Stage::kWriting);
      return true;
    } catch (const std::exception& failure) {
      keep_error();
      for (; next != mine.destinations.end(); ++next) reject_part(next->folder, mine.part, failure.what());
      return false;
    }
  }

  void copy(CheckpointPart& part) {
    const telemetry::TraceScope span(spans, "checkpoint", "copy", {"step", part.head.step});
    part.shards = copier.copy(std::move(part.shards));
    // Offloaded values are not copied. They may change only after they are written.
    const bool all_copied = std::none_of(part.shards.begin(), part.shards.end(), [](const Shard& shard) {
      return shard.offloaded_storage != nullptr;
    });
    if (all_copied) move_on_to(Stage::kWriting);
  }

  void finish(const Job& mine, bool written) {
    const Deadline slowest = Deadline::after_s(kLongestWrite_s);
    std::optional<Deadline> last;
    const auto wait = [&] {
      std::unique_lock lock(mutex);
      if (stopping && !last) last = Deadline::after_s(kLastParts_s);
      if (slowest.expired() || (last && last->expired())) return false;
      changed.wait_until(lock, Deadline::after_s(kLook_s).at(), [&] { return stopping && !last; });
      return true;
    };
    for (const auto& [folder, keep] : mine.destinations) {
      try {
        written ? static_cast<void>(finish_checkpoint(folder, mine.part, keep, wait))
                : abandon_checkpoint(folder, mine.part, wait);
      } catch (...) {
        keep_error();
      }
    }
  }

  /// Keeps the first error only.
  void keep_error() {
    const std::lock_guard lock(mutex);
    if (!error) error = std::current_exception();
  }

  void move_on_to(Stage next) {
    const std::lock_guard lock(mutex);
    set(next);
  }

  /// Under the mutex.
  void set(Stage next) {
    stage = next;
    changed.notify_all();
  }

  /// With the lock held: returns when `wanted` holds.
  template <class Wanted>
  void wait_for(std::unique_lock<std::mutex>& lock, const Wanted& wanted) {
    if (changed.wait_until(lock, Deadline::after_s(kLongestWrite_s).at(), wanted)) return;
    throw DataError(text("a checkpoint has not been written within ", kLongestWrite_s,
                         " s; is the disk of the run's folder reachable?"));
  }

  void throw_error() {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }

  telemetry::Trace* const trace;
  telemetry::TraceBuffer* spans = nullptr;  // of the saving thread
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Job> job;  // this up to stalled_s: under the mutex
  Stage stage = Stage::kIdle;
  std::exception_ptr error;
  bool stopping = false;
  double stalled_s = 0;  // of the training thread
  Copier copier;         // of the saving thread
  std::thread thread;
};

BackgroundSaver::BackgroundSaver(telemetry::Trace* trace) : state_(std::make_unique<State>(trace)) {}

BackgroundSaver::~BackgroundSaver() = default;

void BackgroundSaver::save(CheckpointPart part, std::vector<Destination> destinations) {
  const double began_s = now_s();
  wait();
  fetch_from_devices(part.shards);
  State& state = *state_;
  if (!state.thread.joinable()) state.thread = std::thread([&state] { state.work(); });
  const std::lock_guard lock(state.mutex);
  state.job = {.part = std::move(part), .destinations = std::move(destinations)};
  state.set(State::Stage::kCopying);
  state.stalled_s += now_s() - began_s;
}

void BackgroundSaver::wait_until_copied() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.stage != State::Stage::kCopying) return;
  const double began_s = now_s();
  state.wait_for(lock, [&] { return state.stage != State::Stage::kCopying; });
  state.stalled_s += now_s() - began_s;
}

void BackgroundSaver::check() {
  const std::lock_guard lock(state_->mutex);
  state_->throw_error();
}

void BackgroundSaver::wait_until_written() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const double began_s = now_s();
  state.wait_for(
      lock, [&] { return state.stage == State::Stage::kIdle || state.stage == State::Stage::kFinishing; });
  state.stalled_s += now_s() - began_s;
  state.throw_error();
}

void BackgroundSaver::wait() {
  std::unique_lock lock(state_->mutex);
  state_->wait_for(lock, [&] { return state_->stage == State::Stage::kIdle; });
  state_->throw_error();
}

double BackgroundSaver::stalled_s() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stalled_s;
}

}  // namespace trireme::checkpoint
