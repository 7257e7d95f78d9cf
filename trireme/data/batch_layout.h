#pragma once
// The samples and the epoch of each step's batch. Batches are consecutive: each takes the next places of the
// epoch's order, and the last one of an epoch takes the rest. So each sample comes once in an epoch. A last
// batch that is not full can be dropped instead. The size of a full batch may change at given steps, within
// an epoch too: a batch-size ramp-up (Smith et al., "Don't Decay the Learning Rate, Increase the Batch Size",
// ICLR 2018). So a place in the data is one number, the step. A value; immutable, thread-safe.

#include <cstdint>
#include <vector>

namespace trireme::data {

/// The steps before number `until`, counted from 0, have batches of `size` samples.
struct BatchPhase {
  std::int64_t until = 0;
  std::int64_t size = 0;
};
/// The first steps of a run, in which batches are smaller; phases one after the other. Empty: all are alike.
using BatchRamp = std::vector<BatchPhase>;

/// The samples at the end of an epoch that are no full batch: a batch of their own, or left out in that
/// epoch.
enum class LastBatch { kSmaller, kDropped };

/// The batch of a step.
struct BatchPlace {
  std::uint64_t epoch = 0;
  std::int64_t number = 0;  ///< within the epoch, from 0
  std::int64_t first = 0;   ///< place of its first sample in the order of the epoch
  std::int64_t size = 0;    ///< samples
  std::int64_t full = 0;    ///< samples of a full batch at that step: `size`, but at the end of an epoch

  bool operator==(const BatchPlace&) const = default;
};

class BatchLayout {
 public:
  /// Throws InvalidArgument: no samples; a batch of none; phases whose ends do not rise; a batch that is
  /// never full, and dropped.
  BatchLayout(std::int64_t num_samples, std::int64_t global_batch, const BatchRamp& ramp = {},
              LastBatch last_batch = LastBatch::kSmaller);

  /// Of step `step`, counted from 0. Time: logarithm of the number of phases, as for the others.
  BatchPlace at(std::uint64_t step) const;
  /// The first step of that epoch: as many as there are in those before it. kMaxSteps where there are more.
  std::int64_t first_step_of(std::uint64_t epoch) const;
  /// The first step of [begin, end), and each at which the size of full batches changes: in ascending order.
  std::vector<std::int64_t> phases_in(std::int64_t begin, std::int64_t end) const;

  /// The largest count that a double represents exactly.
  static constexpr std::int64_t kMaxSteps = std::int64_t{1} << 53;

 private:
  struct Phase {
    std::uint64_t from;  ///< step
    BatchPlace begin;    ///< its batch
  };

  BatchPlace in(const Phase& phase, std::uint64_t step) const;
  /// Batches from the beginning of the phase to the end of its epoch, and in an epoch after it.
  std::uint64_t batches_of_first(const Phase& phase) const;
  std::uint64_t batches_of_others(const Phase& phase) const;
  std::uint64_t batches_in(std::int64_t samples, std::int64_t size) const;

  std::int64_t num_samples_;
  LastBatch last_batch_;
  std::vector<Phase> phases_;
};

}  // namespace trireme::data
