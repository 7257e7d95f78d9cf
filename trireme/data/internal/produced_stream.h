#pragma once
// The batches that producers fill. Producers get the rows of the next `prefetch` steps in order. A
// micro-batch is complete when all of its rows are. Thread-safe; one consumer.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/data/internal/batch_partition.h"
#include "trireme/data/producer.h"

namespace trireme::data {

class ProducedStream {
 public:
  ProducedStream(const ProducedOptions& data, const StreamOptions& options);

  /// A row to fill, when there is one. False: no more are wanted.
  bool fill(const std::function<void(Row&)>& make);
  bool is_wanted() const;
  /// Producers get no more rows.
  void close();
  /// A thread has returned: by itself (null) or by an error.
  void thread_ended(std::exception_ptr error);

  void seek(std::uint64_t step);
  void assign_shares(std::uint64_t from, const Shares& shares);
  StepBatch next();
  bool is_ready();
  LoadingReport report() const;

 private:
  /// A micro-batch.
  struct Unit {
    std::uint64_t epoch = 0;
    std::int64_t first_place = 0, rows = 0;
    Example samples = {};
    std::vector<std::int64_t> free = {};  ///< rows to be given away, the last one next
    std::int64_t done = 0;
    bool is_checked = false;
    std::exception_ptr error = nullptr;
  };
  struct Claim {
    std::shared_ptr<Unit> unit;
    std::int64_t row = 0;
  };

  std::uint64_t units_per_step() const { return static_cast<std::uint64_t>(options_.num_microbatches); }
  std::shared_ptr<Unit> make_unit(std::uint64_t number) const;
  /// The first unit with a free row; null: all that are wanted so far are given away.
  std::shared_ptr<Unit> unit_with_room();
  void finish(const Claim& claim);
  void check(Unit& unit) const;
  bool step_is_there();
  std::string what_is_missing();

  const ProducedOptions& data_;
  const StreamOptions options_;
  const BatchLayout layout_;
  mutable std::mutex mutex_;
  std::condition_variable room_, arrived_;
  BatchPartition partition_;  // this and later members: under the mutex
  std::map<std::uint64_t, std::shared_ptr<Unit>> units_;
  std::uint64_t consumed_ = 0;  ///< steps
  LoadingReport reported_;
  std::exception_ptr failure_ = nullptr;
  int threads_ended_ = 0;
  bool closed_ = false;
};

}  // namespace trireme::data
