#include "trireme/data/loader.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::data {
namespace {

/// The orders of the epochs that are being read.
class EpochOrders {
 public:
  explicit EpochOrders(const Sampler& sampler) : sampler_(sampler) {}

  std::shared_ptr<const EpochOrder> get(std::uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, order] : recent_) {
      if (known == epoch) return order;
    }
    auto order = std::make_shared<const EpochOrder>(sampler_.order_of(epoch));
    // Read-ahead spans two epochs, rarely more (tiny data sets): two are kept, others are made again.
    if (recent_.size() == 2) recent_.erase(recent_.begin());
    recent_.emplace_back(epoch, order);
    return order;
  }

 private:
  const Sampler& sampler_;
  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::shared_ptr<const EpochOrder>>> recent_;
};

/// One step that was read ahead, or the error that reading it gave.
struct Slot {
  bool ready = false;
  StepBatch batch;
  std::exception_ptr error;
};

void check(const Dataset& dataset, const LoaderOptions& options) {
  require(options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size, "rank ",
          options.rank, " is not part of a world of ", options.world_size);
  require(options.num_microbatches >= 1, "a step has at least one micro-batch, not ",
          options.num_microbatches);
  require(options.workers >= 1, "loading needs at least one worker, not ", options.workers);
  require(options.prefetch >= 1, "at least one step has to be read ahead, not ", options.prefetch);
  require(options.timeout_s > 0, "the loader's timeout must be positive, not ", options.timeout_s);
  require(dataset.size() >= options.world_size, "the data set has ", dataset.size(), " samples for ",
          options.world_size, " ranks: use fewer ranks or more data");
  const std::int64_t parts = std::int64_t{options.world_size} * options.num_microbatches;
  require(options.global_batch >= parts, "a global batch of ", options.global_batch, " cannot be split over ",
          options.world_size, " ranks with ", options.num_microbatches,
          " micro-batches each: make it at least ", parts);
}

}  // namespace

// Step numbers count from 0 = (epoch 0, batch 0). Workers claim the next unclaimed step while it is less than
// `prefetch` ahead of the consumer, and put the result in slot (step % prefetch): the order of arrival does
// not matter, and a slot is never claimed twice at a time. A seek starts a new generation; results of the
// previous one are dropped.
struct Loader::State {
  State(std::shared_ptr<const Dataset> data, const LoaderOptions& loader_options)
      : dataset(std::move(data)),
        options(loader_options),
        sampler(dataset->size(), options.global_batch, {.order = options.order, .seed = options.seed}),
        orders(sampler),
        slots(static_cast<std::size_t>(options.prefetch)) {}

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void start() {
    for (int i = 0; i < options.workers; ++i) {
      workers.emplace_back([this, i] {
        const std::string name = text("data-", i);
        ::pthread_setname_np(::pthread_self(), name.c_str());
        work(options.trace == nullptr ? nullptr : &options.trace->add_thread(name));
      });
    }
  }

  StepBatch read(std::uint64_t step) {
    const auto per_epoch = static_cast<std::uint64_t>(sampler.batches_per_epoch());
    StepBatch result;
    result.epoch = step / per_epoch;
    result.batch = static_cast<std::int64_t>(step % per_epoch);
    result.global_size = sampler.batch_size(result.batch);
    const std::shared_ptr<const EpochOrder> order = orders.get(result.epoch);
    const std::shared_ptr<const Dataset> of_epoch = dataset->in_epoch(result.epoch);
    const Dataset& samples = of_epoch ? *of_epoch : *dataset;
    const std::int64_t first = result.batch * options.global_batch;
    const std::int64_t parts = std::int64_t{options.world_size} * options.num_microbatches;
    for (int i = 0; i < options.num_microbatches; ++i) {
      const Slice part =
          slice_of(result.global_size, std::int64_t{options.rank} * options.num_microbatches + i, parts);
      std::vector<std::int64_t> indices;
      for (std::int64_t place = part.begin; place < part.end; ++place)
        indices.push_back((*order)[first + place]);
      result.microbatches.push_back(samples.get_batch(indices));
      check_finite(result.microbatches.back(), indices);
      if (options.check_targets) options.check_targets(result.microbatches.back(), indices);
    }
    return result;
  }

  void work(telemetry::TraceBuffer* trace) {
    std::unique_lock lock(mutex);
    for (;;) {
      // Woken by notify; a wake-up that the C library lost would cost kIdleWait_s, not the run.
      changed.wait_until(lock, Deadline::after_s(kIdleWait_s).at(), [&] { return stopping || can_claim(); });
      if (stopping) return;
      if (!can_claim()) continue;
      const std::uint64_t step = claimed++;
      const std::uint64_t mine = generation;
      lock.unlock();
      Slot slot{.ready = true, .batch = {}, .error = nullptr};
      try {
        const telemetry::TraceScope span(trace, "data", "batch", {"batch", static_cast<std::int64_t>(step)});
        slot.batch = read(step);
      } catch (...) {
        slot.error = std::current_exception();
      }
      lock.lock();
      if (mine != generation) continue;
      slot_of(step) = std::move(slot);
      changed.notify_all();
    }
  }

  bool can_claim() const { return claimed < consumed + slots.size(); }
  Slot& slot_of(std::uint64_t step) { return slots[static_cast<std::size_t>(step % slots.size())]; }

  static constexpr double kIdleWait_s = 60;

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  const Sampler sampler;
  EpochOrders orders;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Slot> slots;  // this and what follows: under the mutex
  std::uint64_t claimed = 0, consumed = 0, generation = 0;
  double waited_s = 0;
  bool stopping = false;
  std::vector<std::thread> workers;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options) {
  check(*dataset, options);
  state_ = std::make_unique<State>(std::move(dataset), options);
}

Loader::~Loader() = default;

std::int64_t Loader::batches_per_epoch() const { return state_->sampler.batches_per_epoch(); }

void Loader::seek(std::uint64_t epoch, std::int64_t batch) {
  require(batch >= 0 && batch < batches_per_epoch(), "there is no batch ", batch, " in an epoch of ",
          batches_per_epoch());
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->generation;
    state_->consumed = state_->claimed =
        epoch * static_cast<std::uint64_t>(batches_per_epoch()) + static_cast<std::uint64_t>(batch);
    for (Slot& slot : state_->slots) slot = {};
  }
  state_->changed.notify_all();
}

StepBatch Loader::next() {
  State& state = *state_;
  if (state.workers.empty()) state.start();
  std::unique_lock lock(state.mutex);
  Slot& slot = state.slot_of(state.consumed);
  if (!slot.ready) {
    const double began_s = now_s();
    state.changed.wait_until(lock, Deadline::after_s(state.options.timeout_s).at(),
                             [&] { return slot.ready; });
    state.waited_s += now_s() - began_s;
  }
  if (!slot.ready) {
    throw DataError(text("the data of step ", state.consumed, " did not arrive within ",
                         state.options.timeout_s, " s; is the disk reachable?"));
  }
  // The slot keeps its error: asking again gives it again, nothing behind it is delivered.
  if (slot.error) std::rethrow_exception(slot.error);
  StepBatch batch = std::move(slot.batch);
  slot = {};
  ++state.consumed;
  lock.unlock();
  state.changed.notify_all();
  return batch;
}

double Loader::waited_s() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waited_s;
}

}  // namespace trireme::data
