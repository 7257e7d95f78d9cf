#include "trireme/checkpoint/background_saver.h"

#include <ATen/ops/empty_like.h>
#include <pthread.h>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

/// Longer than any disk that still works takes for one checkpoint.
constexpr double kLongestWrite_s = 1800;
/// Woken by notify; a wake-up that the C library lost would cost so much, not the run.
constexpr double kIdleWait_s = 60;

bool lies_flat_in_memory(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous();
}

/// Copies into memory that lasts from save to save: fresh pages would cost more than the copy itself.
class Copier {
 public:
  TensorMap copy(const TensorMap& tensors) {
    TensorMap copies;
    for (const auto& [name, tensor] : tensors) copies.emplace(name, copy(name, tensor));
    return copies;
  }

 private:
  at::Tensor copy(const std::string& name, const at::Tensor& tensor) {
    if (!lies_flat_in_memory(tensor)) return tensor.detach().cpu().clone();
    at::Tensor& kept = kept_[name];
    if (!kept.defined() || kept.sizes() != tensor.sizes() || kept.scalar_type() != tensor.scalar_type())
      kept = at::empty_like(tensor.detach());
    std::memcpy(kept.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
    return kept;
  }

  TensorMap kept_;
};

/// Replaces what another thread cannot copy by itself, because it has to be ordered behind work on a device.
void fetch_from_devices(TensorMap& tensors) {
  for (auto& [name, tensor] : tensors) {
    if (!tensor.device().is_cpu()) tensor = tensor.detach().cpu();
  }
}

}  // namespace

struct BackgroundSaver::State {
  struct Job {
    TrainingCheckpoint checkpoint;
    std::vector<Destination> destinations;
  };
  enum class Stage { kIdle, kCopying, kWriting };

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
      const Job mine = *std::exchange(job, std::nullopt);
      lock.unlock();
      const std::exception_ptr failed = run(mine);
      lock.lock();
      if (failed) error = failed;
      set(Stage::kIdle);
    }
  }

  std::exception_ptr run(const Job& mine) {
    try {
      const TrainingCheckpoint copy = copy_of(mine.checkpoint);
      const telemetry::TraceScope span(spans, "checkpoint", "write", {"step", copy.step});
      for (const auto& [folder, keep] : mine.destinations) save_checkpoint(folder, copy, keep);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  TrainingCheckpoint copy_of(const TrainingCheckpoint& original) {
    const telemetry::TraceScope span(spans, "checkpoint", "copy", {"step", original.step});
    TrainingCheckpoint copy = original;
    copy.model = model_copier.copy(copy.model);
    copy.optimizer = optimizer_copier.copy(copy.optimizer);
    const std::lock_guard lock(mutex);
    set(Stage::kWriting);
    return copy;
  }

  /// Under the mutex.
  void set(Stage next) {
    stage = next;
    changed.notify_all();
  }

  /// With the lock held: returns when the thread has come as far as `wanted`.
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
  std::optional<Job> job;  // this and what follows: under the mutex
  Stage stage = Stage::kIdle;
  std::exception_ptr error;
  bool stopping = false;
  double stalled_s = 0;                   // of the training thread
  Copier model_copier, optimizer_copier;  // of the saving thread
  std::thread thread;
};

BackgroundSaver::BackgroundSaver(telemetry::Trace* trace) : state_(std::make_unique<State>(trace)) {}

BackgroundSaver::~BackgroundSaver() = default;

void BackgroundSaver::save(TrainingCheckpoint checkpoint, std::vector<Destination> destinations) {
  const double began_s = now_s();
  wait();
  fetch_from_devices(checkpoint.model);
  fetch_from_devices(checkpoint.optimizer);
  State& state = *state_;
  if (!state.thread.joinable()) state.thread = std::thread([&state] { state.work(); });
  const std::lock_guard lock(state.mutex);
  state.job = {.checkpoint = std::move(checkpoint), .destinations = std::move(destinations)};
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
