#include "trireme/data/loader.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/foreign_error.h"
#include "trireme/data/batch_reader.h"
#include "trireme/data/internal/batch_partition.h"
#include "trireme/data/internal/own_thread.h"
#include "trireme/data/internal/read_ahead_tuner.h"
#include "trireme/data/internal/row_team.h"

namespace trireme::data {
namespace {

/// Sample orders of the epochs that are being read.
class EpochOrders {
 public:
  explicit EpochOrders(const Sampler& sampler) : sampler_(sampler) {}

  std::shared_ptr<const EpochOrder> get(std::uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, order] : recent_) {
      if (known == epoch) return order;
    }
    auto order = std::make_shared<const EpochOrder>(sampler_.order_of(epoch));
    // Read-ahead spans two epochs, rarely more (tiny data sets). Two orders are cached, others are
    // recomputed.
    if (recent_.size() == 2) recent_.erase(recent_.begin());
    recent_.emplace_back(epoch, order);
    return order;
  }

 private:
  const Sampler& sampler_;
  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::shared_ptr<const EpochOrder>>> recent_;
};

/// One micro-batch that was read ahead, or the error that reading it gave.
struct Slot {
  Example samples = {};
  std::exception_ptr error = nullptr;
};

std::int64_t bytes_of(const Fields& fields) {
  std::int64_t bytes = 0;
  for (const batch::Field& field : fields) bytes += static_cast<std::int64_t>(field.tensor.nbytes());
  return bytes;
}

Fields pinned(const Fields& fields) {
  return fields.map([](const at::Tensor& tensor) { return tensor.is_cpu() ? tensor.pin_memory() : tensor; });
}

/// "samples 4, 17, 3 and 61 more"
std::string name_of(std::span<const std::int64_t> samples) {
  constexpr std::size_t kNamed = 3;
  std::vector<std::string> names;
  for (const std::int64_t sample : samples.first(std::min(samples.size(), kNamed)))
    names.push_back(std::to_string(sample));
  return text("samples ", join(names),
              samples.size() > kNamed ? text(" and ", samples.size() - kNamed, " more") : "");
}

}  // namespace

void check_stream(const StreamOptions& options, std::int64_t samples) {
  require(options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size, "rank ",
          options.rank, " is not part of a world of ", options.world_size);
  require(options.num_microbatches >= 1, "a step has at least one micro-batch, not ",
          options.num_microbatches);
  require(options.workers >= 0 && options.max_workers >= 1, "loading needs at least one worker, not ",
          options.workers == 0 ? options.max_workers : options.workers);
  require(options.prefetch >= 1, "at least one step has to be read ahead, not ", options.prefetch);
  require(options.timeout_s > 0, "the loader's timeout must be positive, not ", options.timeout_s);
  require(samples >= options.world_size, "the data set has ", samples, " samples for ", options.world_size,
          " ranks: use fewer ranks or more data");
  const std::int64_t parts = std::int64_t{options.world_size} * options.num_microbatches;
  const auto check_batch = [&](std::int64_t batch) {
    require(batch >= parts, "a global batch of ", batch, " cannot be split over ", options.world_size,
            " ranks with ", options.num_microbatches, " micro-batches each: make it at least ", parts);
  };
  check_batch(options.global_batch);
  for (const BatchPhase& phase : options.ramp) check_batch(phase.size);
}

BatchLayout layout_of(const StreamOptions& options, std::int64_t samples) {
  return {samples, options.global_batch, options.ramp, options.last_batch};
}

// Micro-batches are numbered over all steps. A worker claims the next number if its step is less than
// `prefetch` ahead of the consumer. It stores the result under this number, so the order of arrival does not
// matter. A seek starts a new generation. Results of the previous one are dropped, as are those of steps
// whose shares or sizes have changed. All workers without earlier work read rows of a micro-batch together.
// While a step waits for data, idle workers above the current limit help, too.
struct Loader::State {
  State(std::shared_ptr<const Dataset> data, const StreamOptions& stream_options)
      : dataset(std::move(data)),
        options(stream_options),
        sampler(dataset->size(), {.order = options.order,
                                  .seed = options.seed,
                                  .shard_ends = dataset->shard_ends(),
                                  .open_shards = options.open_shards}),
        orders(sampler),
        reader(options.needed),
        layout(layout_of(options, dataset->size())),
        partition(options),
        tuner({.workers = std::max(options.workers, 1), .prefetch = options.prefetch},
              {.max_workers = options.max_workers, .memory_bytes = options.memory_bytes}),
        team([this] {
          bool is_urgent = false;
          {
            const std::lock_guard lock(mutex);
            is_urgent = is_awaited;
          }
          changed.notify_all();
          if (is_urgent) wanted.notify_all();
        }) {}

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    wanted.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void start_workers() {
    for (int i = 0; i < (options.workers == 0 ? options.max_workers : options.workers); ++i) {
      workers.emplace_back([this, i] {
        const std::string name = text("data-", i);
        ::pthread_setname_np(::pthread_self(), name.c_str());
        compute_on_this_thread_alone();
        work(i, options.trace == nullptr ? nullptr : &options.trace->add_thread(name));
      });
    }
  }

  /// Reads micro-batch `number`, counted over all steps. It is a part of `batch` by the shares `dealt`.
  Example read(std::uint64_t number, const BatchPlace& batch, const BatchPartition::SharesInUse& dealt) {
    const auto part = static_cast<std::int64_t>(number % units_per_step());
    const std::shared_ptr<const EpochOrder> order = orders.get(batch.epoch);
    return read(batch.epoch, part_of(*order, dealt, batch, part));
  }

  /// The samples of this rank's part `part` of a global batch.
  std::vector<std::int64_t> part_of(const EpochOrder& order, const BatchPartition::SharesInUse& dealt,
                                    const BatchPlace& batch, std::int64_t part) const {
    std::vector<std::int64_t> samples;
    if (options.balance != Balance::kCost) {
      const Slice slice = partition.slice(dealt, batch, part);
      for (std::int64_t place = slice.begin; place < slice.end; ++place)
        samples.push_back(order[batch.first + place]);
      return samples;
    }
    std::vector<double> costs;
    for (std::int64_t place = batch.first; place < batch.first + batch.size; ++place) {
      const std::int64_t sample = order[place];
      costs.push_back(as_data_error_of([sample] { return text("the cost of sample ", sample); },
                                       [&] { return dataset->cost(sample); }));
    }
    const std::int64_t parts = std::int64_t{options.world_size} * options.num_microbatches,
                       index = std::int64_t{options.rank} * options.num_microbatches + part;
    for (const std::int64_t place : balanced_part(costs, index, parts))
      samples.push_back(order[batch.first + place]);
    return samples;
  }

  Example read(std::uint64_t epoch, std::span<const std::int64_t> indices) {
    const auto read_them = [&] {
      const std::shared_ptr<const Dataset> of_epoch = dataset->in_epoch(epoch);
      Example samples = reader.read(of_epoch ? *of_epoch : *dataset, indices);
      if (options.needed.inputs) check_finite(samples, indices);
      if (options.needed.targets && options.check_targets) options.check_targets(samples, indices);
      return where_a_device_reads(std::move(samples));
    };
    return as_data_error_of([&] { return text("a batch of ", name_of(indices)); }, read_them);
  }

  Example where_a_device_reads(Example samples) {
    if (!options.pinned || cannot_pin) return samples;
    const StageScope copying(Stage::kCopy);
    try {
      return {options.needed.inputs ? pinned(samples.input) : samples.input,
              options.needed.targets ? pinned(samples.target) : samples.target};
    } catch (const c10::Error& reason) {
      if (!cannot_pin.exchange(true))
        options.log.warning("batches are copied to the device from memory that is not pinned, which blocks: ",
                            reason.what_without_backtrace());
      return samples;
    }
  }

  void work(int me, telemetry::TraceBuffer* trace) {
    std::unique_lock lock(mutex);
    for (;;) {
      // Woken by notify. A wake-up that the C library loses costs kIdleWait_s, not the run.
      const auto may_claim = [&] { return me < tuner.now().workers && can_claim(); };
      std::condition_variable& called = me < tuner.now().workers ? changed : wanted;
      called.wait_until(lock, Deadline::after_s(kIdleWait_s).at(), [&] {
        return stopping || may_help(me) || may_claim() || is_called_otherwise(me, called);
      });
      if (stopping) return;
      if (may_help(me)) help(me, trace, lock);
      if (stopping || !may_claim()) continue;
      const std::uint64_t number = claimed++;
      const std::uint64_t mine = generation, step = number / units_per_step();
      const BatchPartition::SharesInUse dealt = partition.at(step);
      const BatchPlace batch = layout.at(step);
      lock.unlock();
      Slot slot;
      LoadingCounts counts;
      try {
        const telemetry::TraceScope span(trace, "data", "batch", {"batch", static_cast<std::int64_t>(step)});
        const LoadingMeter meter(counts);
        const RowTeam::Scope rows(team, number);
        slot.samples = read(number, batch, dealt);
        counts.samples = slot.samples.rows();
      } catch (...) {
        slot.error = std::current_exception();
      }
      lock.lock();
      reported.counts += counts;
      if (mine != generation || dealt != partition.at(step) || batch != layout.at(step)) continue;
      slots[number] = std::move(slot);
      changed.notify_all();
    }
  }

  /// The tuner has changed the number of workers: this thread waits on the wrong condition variable.
  bool is_called_otherwise(int me, const std::condition_variable& called) const {
    return (me < tuner.now().workers) != (&called == &changed);
  }

  /// Open rows have priority over later batches.
  bool may_help(int me) const {
    return (me < tuner.now().workers || (is_awaited && !step_is_there())) && team.has_open_rows();
  }

  void help(int me, telemetry::TraceBuffer* trace, std::unique_lock<std::mutex>& lock) {
    LoadingCounts counts;
    {
      const telemetry::TraceScope span(trace, "data", "rows");
      const LoadingMeter meter(counts);
      do {
        lock.unlock();
        team.help();
        lock.lock();
      } while (!stopping && may_help(me));
    }
    reported.counts += counts;
  }

  /// Drops the results of step `from` and later steps, so that they are read again.
  void read_again(std::uint64_t from) {
    const std::uint64_t first = from * units_per_step();
    slots.erase(slots.lower_bound(first), slots.end());
    claimed = std::min(claimed, first);
  }

  std::uint64_t units_per_step() const { return static_cast<std::uint64_t>(options.num_microbatches); }
  std::uint64_t first_unit() const { return consumed * units_per_step(); }
  bool can_claim() const {
    return claimed < first_unit() + static_cast<std::uint64_t>(tuner.now().prefetch) * units_per_step();
  }
  /// Whether next() can return or throw. A failed micro-batch makes the later ones of its step unnecessary.
  bool step_is_there() const {
    for (std::uint64_t number = first_unit(); number < first_unit() + units_per_step(); ++number) {
      const auto found = slots.find(number);
      if (found == slots.end()) return false;
      if (found->second.error) return true;
    }
    return true;
  }

  /// Takes the current step, whose micro-batches are complete. All of them leave the slots, or none.
  StepBatch take_step() {
    const BatchPlace place = layout.at(consumed);
    StepBatch result{
        .epoch = place.epoch, .batch = place.number, .global_size = place.size, .microbatches = {}};
    const auto first = slots.find(first_unit());
    // A slot keeps its error: each further call throws it again, and no later step is delivered.
    for (auto slot = first; slot != slots.end() && slot->first < first_unit() + units_per_step(); ++slot) {
      if (slot->second.error) std::rethrow_exception(slot->second.error);
    }
    for (auto slot = first; result.microbatches.size() < units_per_step(); slot = slots.erase(slot)) {
      if (options.needed.inputs) bytes_of_step += bytes_of(slot->second.samples.input);
      if (options.needed.targets) bytes_of_step += bytes_of(slot->second.samples.target);
      result.microbatches.push_back(std::move(slot->second.samples));
    }
    partition.forget_before(++consumed);
    return result;
  }

  /// Calls the tuner when the window is long enough. Returns the change in words, or "".
  std::string tune() {
    constexpr std::int64_t kSteps = 16;
    constexpr double kWindow_s = 0.5;
    const double wall_s = now_s() - window_began_s;
    const std::int64_t steps = reported.batches - at_window.batches;
    if (options.workers != 0 || steps < kSteps || wall_s < kWindow_s) return "";
    std::string change = tuner.look({.wall_s = wall_s,
                                     .waited_s = reported.waited_s - at_window.waited_s,
                                     .busy_s = reported.counts.busy_s - at_window.counts.busy_s,
                                     .steps = steps,
                                     .bytes_of_step = bytes_of_step / steps});
    begin_window();
    return change;
  }

  void begin_window() {
    at_window = reported;
    bytes_of_step = 0;
    window_began_s = now_s();
  }

  static constexpr double kIdleWait_s = 60;

  const std::shared_ptr<const Dataset> dataset;
  const StreamOptions options;
  const Sampler sampler;
  EpochOrders orders;
  const BatchReader reader;
  std::atomic<bool> cannot_pin = false;
  std::mutex mutex;
  std::condition_variable changed;  ///< workers below the limit, and next()
  std::condition_variable wanted;   ///< workers above the limit; they help while a step waits
  BatchLayout layout;               // this and all below: under the mutex
  BatchPartition partition;
  ReadAheadTuner tuner;
  std::map<std::uint64_t, Slot> slots;
  std::uint64_t claimed = 0;   ///< micro-batches
  std::uint64_t consumed = 0;  ///< steps
  std::uint64_t generation = 0;
  LoadingReport reported;   ///< except fill, which is a sum
  LoadingReport at_window;  ///< at the start of the tuner's window
  std::int64_t bytes_of_step = 0;
  double window_began_s = 0;
  bool is_awaited = false;  ///< next() waits for the current step
  bool stopping = false;
  RowTeam team;
  std::vector<std::thread> workers;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const StreamOptions& options) {
  check_stream(options, dataset->size());
  state_ = std::make_unique<State>(std::move(dataset), options);
}

Loader::~Loader() = default;

void Loader::seek(std::uint64_t step) {
  State& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    ++state.generation;
    state.consumed = step;
    state.claimed = state.first_unit();
    state.slots.clear();
    state.partition.reset();
  }
  state.changed.notify_all();
}

void Loader::assign_shares(std::uint64_t from, const Shares& shares) {
  State& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    state.partition.set(from, shares, state.consumed);
    state.read_again(from);
  }
  state.changed.notify_all();
}

void Loader::change_ramp(std::uint64_t from, const BatchRamp& ramp) {
  State& state = *state_;
  StreamOptions changed = state.options;
  changed.ramp = ramp;
  check_stream(changed, state.dataset->size());
  {
    const std::lock_guard lock(state.mutex);
    require(from >= state.consumed, "the batch of step ", from, " cannot change: ", state.consumed,
            " have been handed over");
    state.layout = layout_of(changed, state.dataset->size());
    state.read_again(from);
  }
  state.changed.notify_all();
}

StepBatch Loader::next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.workers.empty()) {
    state.start_workers();
  } else {
    state.reported.fill +=
        static_cast<double>(state.slots.size()) /
        static_cast<double>(state.units_per_step() * static_cast<std::uint64_t>(state.tuner.now().prefetch));
  }
  if (!state.step_is_there()) {
    const double began_s = now_s();
    state.is_awaited = true;
    if (state.team.has_open_rows()) state.wanted.notify_all();
    state.changed.wait_until(lock, Deadline::after_s(state.options.timeout_s).at(),
                             [&] { return state.step_is_there(); });
    state.is_awaited = false;
    state.reported.waited_s += now_s() - began_s;
  }
  if (!state.step_is_there()) {
    throw DataError(text("the data of step ", state.consumed, " did not arrive within ",
                         state.options.timeout_s, " s; is the disk reachable?"));
  }
  StepBatch batch = state.take_step();
  // The wait for the first step is startup time, not part of a window.
  if (++state.reported.batches == 1) state.begin_window();
  const std::string change = state.tune();
  if (!change.empty()) state.reported.last_change = change;
  lock.unlock();
  state.changed.notify_all();
  if (!change.empty()) {
    state.wanted.notify_all();
    state.options.log.info("data: ", change);
  }
  return batch;
}

bool Loader::is_ready() const {
  const std::lock_guard lock(state_->mutex);
  return state_->step_is_there();
}

LoadingReport Loader::report() const {
  const std::lock_guard lock(state_->mutex);
  LoadingReport report = state_->reported;
  if (report.batches > 1) report.fill /= static_cast<double>(report.batches - 1);
  report.workers = state_->tuner.now().workers;
  report.prefetch = state_->tuner.now().prefetch;
  report.share = state_->partition.share(state_->consumed);
  return report;
}

}  // namespace trireme::data
