#pragma once
// Rows of a batch, read by several threads. The reader of a batch begins alone. If this takes longer than
// handing over rows, the other threads of its team may read the rest. All threads take rows of the batch that
// is needed first. So a step waits for one batch that all threads read, not for several that are read
// concurrently.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <mutex>

namespace trireme::data {

using ReadRow = std::function<void(std::size_t row)>;

/// Calls `read` for rows 0 to `count` - 1, each once, on this thread and those of its team; without one, on
/// this thread. Throws the exception of the first failed row.
void for_each_row(std::size_t count, const ReadRow& read);

/// Thread-safe. It outlives all calls.
class RowTeam {
 public:
  /// `opened` is called when rows are open to others. A batch is read alone for `alone_s` first.
  explicit RowTeam(std::function<void()> opened, double alone_s = 50e-6)
      : opened_(std::move(opened)), alone_s_(alone_s) {}

  struct Batch {
    std::uint64_t number = 0;  ///< in the order in which batches are needed
    double began_s = 0;        ///< when this thread began to read it
  };
  /// Rows of a batch, as for_each_row() reads them.
  void read(const Batch& batch, std::size_t count, const ReadRow& read);
  bool has_open_rows() const;
  /// Reads a few open rows of the batch with the lowest number; none where there are none. The reader of the
  /// batch throws their exceptions.
  void help();

  /// While it lives, this thread reads the `number`-th batch of the team.
  class Scope {
   public:
    Scope(RowTeam& team, std::uint64_t number);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

 private:
  struct Job {
    std::uint64_t number;
    std::size_t count, next, at_once;
    const ReadRow* read;
    int under_way = 0;  ///< threads in its rows
    std::size_t failed_row = 0;
    std::exception_ptr error = nullptr;
  };
  /// Rows [begin, end) of a job.
  struct Rows {
    Job* job;
    std::size_t begin, end;
  };

  /// Of the batch with the lowest number; under the lock.
  Rows take();
  void read_rows(const Rows& rows);
  void read_with_others(Job& job);

  const std::function<void()> opened_;
  const double alone_s_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::list<Job*> open_;  ///< of which rows are left to take, in the order of their numbers
};

}  // namespace trireme::data
