#pragma once
// What a run trains on, and the seam below the trainer: it is opened for a rank, and hands over that rank's
// part of one global batch after the other, from any batch on. A data set whose samples have numbers is one
// kind (data/dataset.h), samples that are made while the run continues are another (data/producer.h).
//
// Where a stream is, one number says, the step: which samples of which epoch that is, batch_layout.h says,
// and what comes there is a function of it and of StreamOptions, never of what was read before. So that is
// all that a checkpoint keeps, it holds for any number of ranks, and continuing anywhere costs nothing (ADR
// 0049).

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
  kDynamic,  ///< consecutive samples; ranks take as many as BatchStream::assign_shares says
};

/// What of a batch a rank computes with. The first stage of a pipeline needs inputs, the last one targets,
/// one in between neither.
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
  /// The other side of a batch has its shape and may have any values: a stream spares what it can.
  Needed needed = {};
  /// Batches lie in pinned memory, from which a device copies by itself; where that cannot be had, in any.
  bool pinned = false;
  /// Throws DataError when the targets of a batch of these samples are none. Called by worker threads.
  std::function<void(const Example&, std::span<const std::int64_t>)> check_targets = nullptr;
  telemetry::Trace* trace = nullptr;  ///< where each batch that a worker reads is a span; outlives the stream
  Log log = Log();                    ///< hears what changes by itself, and why
};

/// One consuming thread.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// Starts over at step number `step`, counted from the first batch of epoch 0: before the first next(), or
  /// to resume.
  virtual void seek(std::uint64_t step) = 0;
  /// The next step's batch; runs on into the next epoch by itself. Throws DataError: what cannot be read, or
  /// does not come within the timeout; the same again at each call.
  virtual StepBatch next() = 0;
  /// Whether next() has it already, or an error, and waits for nothing. False: that is not known.
  virtual bool is_ready() const { return false; }
  /// Of Balance::kDynamic: from step `from` on, counted from the first batch of epoch 0, ranks take those
  /// shares of a batch of StreamOptions::global_batch samples, each at least a sample per micro-batch, and
  /// scaled_shares() of the batches of a ramp; what is left at the end of an epoch is dealt equally. The
  /// streams of all ranks are told the same; seek() goes back to equal shares. What was read already of those
  /// steps is read again, which is nothing where they are StreamOptions::prefetch steps ahead. Throws
  /// InvalidArgument: shares that are no batch, a step that has been handed over, a stream that cannot.
  virtual void assign_shares(std::uint64_t from, const Shares& shares);
  /// From step `from` on batches lie as with that StreamOptions::ramp, which says the same of the steps
  /// before; also after seek(). The streams of all ranks are told the same. What was read already of those
  /// steps is read again. Throws InvalidArgument: batches too small, a step that has been handed over, a
  /// stream that cannot.
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
  /// Whether tensors of batches of as many samples may differ in size (data/collate.h). Pipelines that have
  /// to know all sizes ahead are rejected then.
  virtual bool sizes_vary() const { return false; }
  /// Whether ranks that open it as the same rank get the same samples, as the stages of a pipeline and the
  /// ranks that share layers or sequences have to. They are rejected where it is false.
  virtual bool is_repeatable() const { return true; }
  /// The result may use this data set, which outlives it. Throws InvalidArgument, which gives the numbers:
  /// fewer samples than ranks; a global batch, or one of the ramp, smaller than world_size *
  /// num_microbatches.
  virtual std::unique_ptr<BatchStream> open(const StreamOptions& options) const = 0;
};

/// The batches of a stream of so many samples per epoch.
BatchLayout layout_of(const StreamOptions& options, std::int64_t samples);

/// What each rank takes of a batch in which all take alike.
Shares equal_shares(const StreamOptions& options);

/// Throws InvalidArgument for options with which no stream of `samples` per epoch can be.
void check_stream(const StreamOptions& options, std::int64_t samples);

}  // namespace trireme::data
