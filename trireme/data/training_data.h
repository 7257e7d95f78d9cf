#pragma once
// The data of a run, and the interface below the trainer. It is opened for a rank, and returns that rank's
// part of one global batch after the other, from any batch on. A data set whose samples have numbers is one
// kind (data/dataset.h). Samples that are made while the run continues are another (data/producer.h).
//
// The position of a stream is one number, the step. batch_layout.h gives its samples and epoch. The batch is
// a function of the step and of StreamOptions, not of earlier reads. So a checkpoint keeps only the step, it
// is valid for any number of ranks, and continuing anywhere costs nothing (ADR 0049).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/data/batch_layout.h"
#include "trireme/data/example.h"
#include "trireme/data/loading_report.h"
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

/// How a global batch is dealt to ranks and micro-batches: the same numbers of samples, but for kDynamic.
enum class Balance {
  kCount,    ///< consecutive samples
  kCost,     ///< so that parts cost alike, where samples differ (Dataset::cost)
  kDynamic,  ///< consecutive samples; BatchStream::assign_shares sets the number of each rank
};

/// The parts of a batch that a rank computes with. The first stage of a pipeline needs inputs, the last one
/// targets, one in between neither.
struct Needed {
  bool inputs = true, targets = true;
};

/// Which part of which batches a rank takes, and how much is read ahead.
struct StreamOptions {
  std::int64_t global_batch = 64;
  BatchRamp ramp = {};  ///< smaller batches of the first steps
  LastBatch last_batch = LastBatch::kSmaller;
  int num_microbatches = 1;
  int rank = 0;
  int world_size = 1;
  /// Threads that read ahead. 0: one, and more while steps wait for data and more make it faster.
  int workers = 1;
  int max_workers = 8;                    ///< where `workers` is 0
  int prefetch = 4;                       ///< steps read ahead; where `workers` is 0, more if that helps
  std::int64_t memory_bytes = 512 << 20;  ///< of batches read ahead, beyond which `prefetch` does not grow
  double timeout_s = 300;                 ///< longest wait of next()
  std::uint64_t seed = 0;
  Order order = Order::kShuffled;
  std::int64_t open_shards = 0;  ///< shards that are read at a time (data/sampler.h); 0: all
  Balance balance = Balance::kCount;
  /// The other parts of a batch have their shape and may have any values: a stream may skip reading them.
  Needed needed = {};
  /// Batches are in pinned memory, from which a device copies asynchronously; where that is not available, in
  /// any.
  bool pinned = false;
  /// Throws DataError when the targets of a batch of these samples are none. Called by worker threads.
  std::function<void(const Example&, std::span<const std::int64_t>)> check_targets = nullptr;
  telemetry::Trace* trace = nullptr;  ///< where each batch that a worker reads is a span; outlives the stream
  Log log = Log();                    ///< gets automatic changes, with the reason
};

/// One consuming thread.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// Starts over at step number `step`, counted from the first batch of epoch 0: before the first next(), or
  /// to resume.
  virtual void seek(std::uint64_t step) = 0;
  /// The next step's batch; continues into the next epoch. Throws DataError: data cannot be read, or do not
  /// come within the timeout; the same again at each call.
  virtual StepBatch next() = 0;
  /// Whether next() has it already, or an error, and waits for nothing. False: that is not known.
  virtual bool is_ready() const { return false; }
  /// Of Balance::kDynamic: from step `from` on, counted from the first batch of epoch 0, ranks take those
  /// shares of a batch of StreamOptions::global_batch samples. Each is at least a sample per micro-batch.
  /// Batches of a ramp use scaled_shares(). The rest at the end of an epoch is divided equally. Call it with
  /// the same shares on the streams of all ranks; seek() goes back to equal shares. Samples of those steps
  /// that were read already are read again, which is nothing where they are StreamOptions::prefetch steps
  /// ahead. Throws InvalidArgument: shares that are no batch, a step that has been returned, a stream without
  /// this feature.
  virtual void assign_shares(std::uint64_t from, const Shares& shares);
  /// From step `from` on batches have the layout of that StreamOptions::ramp, which is the same for the steps
  /// before; also after seek(). Call it with the same ramp on the streams of all ranks. Samples of those
  /// steps that were read already are read again. Throws InvalidArgument: batches too small, a step that has
  /// been returned, a stream without this feature.
  virtual void change_ramp(std::uint64_t from, const BatchRamp& ramp);
  virtual LoadingReport report() const = 0;
};

class TrainingData {
 public:
  virtual ~TrainingData() = default;
  /// Samples of an epoch.
  virtual std::int64_t size() const = 0;
  /// A batch of so many samples as it may look, its values included where they are there already.
  virtual Example trial_batch(std::int64_t samples) const = 0;
  /// Whether tensors of batches with the same number of samples may differ in size (data/collate.h).
  /// Pipelines that need all sizes ahead reject such data.
  virtual bool sizes_vary() const { return false; }
  /// Whether two processes that open it as the same rank get the same samples. The stages of a pipeline, and
  /// ranks that share layers or sequences, need this and reject other data.
  virtual bool is_repeatable() const { return true; }
  /// The result may use this data set, which outlives it. Throws InvalidArgument, which gives the numbers:
  /// fewer samples than ranks; a global batch, or one of the ramp, smaller than world_size *
  /// num_microbatches.
  virtual std::unique_ptr<BatchStream> open(const StreamOptions& options) const = 0;
};

/// The batches of a stream of so many samples per epoch.
BatchLayout layout_of(const StreamOptions& options, std::int64_t samples);

/// Equal shares of all ranks.
Shares equal_shares(const StreamOptions& options);

/// Throws InvalidArgument for options with which no stream of `samples` per epoch can be.
void check_stream(const StreamOptions& options, std::int64_t samples);

}  // namespace trireme::data
