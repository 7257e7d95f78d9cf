#pragma once
// Delivers this rank's micro-batches of each global batch in order, read ahead by worker threads. What a step
// receives depends on (seed, epoch, batch, rank, world, microbatches) only, not on the number of workers.
// A global batch is cut into consecutive parts, one for each micro-batch of each rank, those of a rank one
// behind the other: parts differ by at most one sample, and 1 rank x 4 micro-batches, 2 x 2 and 4 x 1 see the
// same ones. A failed read surfaces as the data set's error from next(), again at each call;
// threads start with the first next() and are joined by the destructor as soon as the read in hand is done.
// One consuming thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/data/sampler.h"
#include "trireme/telemetry/trace.h"

namespace trireme::data {

/// This rank's part of one global batch.
struct StepBatch {
  std::uint64_t epoch = 0;
  std::int64_t batch = 0;             ///< number within the epoch
  std::int64_t global_size = 0;       ///< samples of all ranks and micro-batches of the step
  std::vector<Example> microbatches;  ///< exactly `num_microbatches`; one may hold zero samples
};

struct LoaderOptions {
  std::int64_t global_batch = 64;
  int num_microbatches = 1;
  int rank = 0;
  int world_size = 1;
  int workers = 1;
  int prefetch = 4;        ///< steps read ahead
  double timeout_s = 300;  ///< longest wait of next()
  std::uint64_t seed = 0;
  Order order = Order::kShuffled;
  /// Throws DataError when the targets of a batch of these samples are none. Called by worker threads.
  std::function<void(const Example&, std::span<const std::int64_t>)> check_targets = nullptr;
  telemetry::Trace* trace = nullptr;  ///< where each batch that a worker reads is a span; outlives the loader
};

class Loader {
 public:
  /// Throws InvalidArgument when there are fewer samples than ranks, or the global batch is smaller than
  /// world_size * num_microbatches; the message gives the three numbers.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  std::int64_t batches_per_epoch() const;
  /// Starts over at the given place (before the first next(), or to resume).
  void seek(std::uint64_t epoch, std::int64_t batch);
  /// The next step's batch; runs on into the next epoch by itself.
  StepBatch next();
  /// Seconds that next() has waited for workers so far.
  double waited_s() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::data
