#pragma once
// One partition's part of a sparse table: rows, and candidates, which are keys that were pushed and have no
// row yet. The effects of a push follow from the record, the table's seed and this state, so replicas stay
// equal. Clocks are those that all workers have ended. One thread.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/ps/internal/restored_rows.h"
#include "trireme/ps/internal/row_batch.h"
#include "trireme/ps/internal/row_store.h"
#include "trireme/ps/table.h"

namespace trireme::ps {

class SparseTable {
 public:
  explicit SparseTable(const TableSpec& spec);

  std::uint32_t num_rows() const { return rows_.size(); }
  std::uint32_t num_candidates() const { return candidates_.size(); }
  bool empty() const { return num_rows() == 0 && num_candidates() == 0; }

  /// Updates the rows of these keys at this rate; those that have none get one if they are admitted.
  void push(const RowBatch& batch, double lr, WorkerClock clock);
  /// Values as they are, in a row as if it were new; every key has one then.
  void assign(const RowBatch& batch, WorkerClock clock);
  /// Rows, or candidates, in the format of a checkpoint. Rows above the table's most_rows replace present
  /// ones, as a new row does.
  void restore(const RestoredRows& restored, WorkerClock clock);
  /// Writes the rows one after the other. A key without one has its first values, and still has none.
  void read(const KeyBatch& keys, WorkerClock clock, std::span<float> out) const;
  /// All workers have ended the steps from `before` to `now`: erases a share of the rows without a push for
  /// evict_after steps, which count as gone. All of them are erased after as many steps again.
  void advance(WorkerClock before, WorkerClock now);

  /// Some pages of this moment, without a copy.
  struct Part {
    std::vector<wire::Buffer> pages;
    RowStore::Hand hand;
    bool of_candidates = false;
    std::vector<std::byte> flat() const;
  };
  /// Of about 1 MiB each, or one row.
  std::vector<Part> snapshot() const;
  /// All pages of rows, or of candidates, of this moment.
  std::vector<wire::Buffer> lease(bool of_candidates) const;
  /// Takes the parts of a snapshot, in order, into an empty table. Whether it is one.
  bool install(std::span<const std::byte> bytes);
  std::uint64_t digest(std::uint64_t seed) const;

 private:
  using Row = RowStore::Row;

  Row create(std::uint64_t key, std::uint32_t clock);
  RowStore empty_rows() const { return RowStore(row_elements_ + rule_.state_elements(row_elements_)); }
  void write_first_state(std::span<float> state) const;
  bool admits(std::uint64_t key, std::uint32_t count, std::uint32_t clock);
  bool wins(std::uint64_t key, std::uint32_t before, std::uint32_t after) const;
  void make_room(RowStore& store, std::uint32_t clock) const;
  void write_first_values(std::uint64_t key, std::span<float> values) const;

  TableSpec spec_;
  const OptimizerRule& rule_;
  std::size_t row_elements_;
  RowStore rows_, candidates_;
};

}  // namespace trireme::ps
