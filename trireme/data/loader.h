#pragma once
// Delivers this rank's micro-batches of each global batch of a data set in order, read ahead by worker
// threads. The samples of a step depend on (seed, step, rank, world, microbatches) and on shares only, not on
// the workers. A global batch is cut into consecutive parts, one for each micro-batch of each rank, those of
// a rank one after the other. Parts differ by at most one sample, and 1 rank x 4 micro-batches, 2 x 2 and 4 x
// 1 see the same ones. next() throws the data set's error of a failed read, again at each call. Threads start
// with the first next() and are joined by the destructor as soon as the current read is done.

#include <cstdint>
#include <memory>

#include "trireme/data/dataset.h"
#include "trireme/data/training_data.h"

namespace trireme::data {

class Loader : public BatchStream {
 public:
  /// Throws InvalidArgument as TrainingData::open does.
  Loader(std::shared_ptr<const Dataset> dataset, const StreamOptions& options);
  ~Loader() override;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  void seek(std::uint64_t step) override;
  StepBatch next() override;
  bool is_ready() const override;
  void assign_shares(std::uint64_t from, const Shares& shares) override;
  void change_ramp(std::uint64_t from, const BatchRamp& ramp) override;
  LoadingReport report() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::data
