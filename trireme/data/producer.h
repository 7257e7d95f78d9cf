#pragma once
// Online data generation: samples that a simulation, self-play or a service makes during the run. Threads
// write them into the rows of batches that the trainer takes, or pass tensors that are copied there. Threads
// that are faster than the trainer wait. Each rank makes its own part of every global batch.
//
//   ProducedSamples samples({.like = {at::zeros({4}), at::zeros({1})},
//                            .samples_per_epoch = 10'000,
//                            .threads = 2,
//                            .produce = [](Producer& producer) {
//                              while (producer.fill([](Row& row) { simulate(*row.sample.input); })) {}
//                            }});
//
// Custom threads, without `produce`, call samples.producer() in the same way.
//
// A row has a number that does not depend on the world size. `keyed` declares that a sample is a function of
// it alone (of seed, epoch and place). Such samples are the same on any number of ranks and threads and after
// a resume. Pipelines and verify require them. Other samples are new after a resume.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "trireme/data/training_data.h"

namespace trireme::data {

/// A sample that is to be made.
struct Row {
  std::uint64_t epoch = 0;
  std::int64_t place = 0;  ///< in the epoch, 0 <= place < samples_per_epoch
  Example sample;          ///< to write into: tensors are rows of the batch, their values undefined at first
};

class ProducedStream;

/// Thread-safe.
class Producer {
 public:
  /// Calls `make` to write the next sample, once there is room. False: the run needs no more samples, and
  /// `make` was not called. Passes on the exceptions of `make`, and its row waits for another sample. Other
  /// tensors that it puts into the row are copied. Throws InvalidArgument where they differ from the declared
  /// ones, with both.
  bool fill(const std::function<void(Row&)>& make);
  /// The same with a sample that is there. One copy, into the batch.
  bool put(const Example& sample);
  /// False when a run has ended, and no other continues: for producers that compute for long between samples.
  bool is_wanted() const;
  /// Declares that no run will need samples any more: it ends waits for the first stream.
  void close();

 private:
  friend class ProducedSamples;
  /// False while it serves another.
  bool serve(const std::shared_ptr<ProducedStream>& stream);
  /// The consumer of samples: waits for the first stream that is opened. Null: there will be none.
  std::shared_ptr<ProducedStream> wait_for_stream();

  mutable std::mutex mutex_;
  std::condition_variable opened_;
  std::weak_ptr<ProducedStream> stream_;
  bool was_open_ = false;  ///< or will never be
};

struct ProducedOptions {
  std::string name = "producer";  ///< in errors and names of threads
  Example like = {};              ///< a sample: names, shapes and types of all of them
  std::int64_t samples_per_epoch = 0;
  bool keyed = false;  ///< each sample is a function of epoch and place, and of nothing else
  int threads = 0;     ///< that run `produce`
  /// Makes samples until fill or put returns false. An exception ends the run with that error.
  std::function<void(Producer&)> produce = nullptr;
};

/// The training data that a run takes: rows come from `produce` on threads of its own, or from an engine
/// through producer(). Ends its threads when it is destroyed. Thread-safe.
class ProducedSamples : public TrainingData {
 public:
  /// Throws InvalidArgument: no fields, no samples, threads without a function or the other way round.
  explicit ProducedSamples(ProducedOptions options);
  ~ProducedSamples() override;

  /// Where there is no `produce`. Throws InvalidArgument where there is.
  Producer& producer() const;

  std::int64_t size() const override { return options_.samples_per_epoch; }
  /// The sample that was promised, so many times.
  Example trial_batch(std::int64_t samples) const override;
  bool is_repeatable() const override { return options_.keyed; }
  /// With custom threads one stream at a time, else any number. next() throws the exception of a thread. It
  /// throws DataError, with the number of delivered samples, when samples do not come within the timeout or
  /// all threads have returned.
  std::unique_ptr<BatchStream> open(const StreamOptions& options) const override;

 private:
  ProducedOptions options_;
  std::shared_ptr<Producer> producer_;  ///< of custom threads
};

}  // namespace trireme::data
