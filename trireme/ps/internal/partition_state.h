#pragma once
// The state of a partition: contents of tables, which requests of which worker it has taken, the workers'
// clocks. A deterministic state machine: the same records in the same order give the same bytes on every
// replica, so digest() is equal at an equal version. One thread.

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <variant>
#include <vector>

#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/internal/dense_chunk.h"
#include "trireme/ps/internal/expected_workers.h"
#include "trireme/ps/internal/sequence_window.h"
#include "trireme/ps/internal/sparse_table.h"
#include "trireme/ps/messages.h"

namespace trireme::ps {

struct ChunkKey {
  TableId table = 0;
  std::uint64_t chunk = 0;
  auto operator<=>(const ChunkKey&) const = default;
};

/// A partition's state of a worker.
struct WorkerState {
  SequenceWindow window;
  WorkerClock clock = 0;
  MapVersion registered_at = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.window, self.clock, self.registered_at);
  }
};

class PartitionState {
 public:
  Version version() const { return version_; }
  const std::map<WorkerLife, WorkerState>& workers() const { return workers_; }
  const WorkerState* worker(const WorkerLife& life) const;
  bool knows(TableId table) const { return tables_.contains(table); }
  /// The steps that every worker has ended. It never decreases, also when a late worker joins: that one joins
  /// here. It does not grow before the expected workers have joined.
  WorkerClock min_clock() const { return min_clock_; }
  const ExpectedWorkers& expected() const { return expected_; }

  /// Whether the record can be applied: sizes fit, tables and workers are known.
  bool fits(const LogRecord& record, const wire::Buffer& body) const;
  /// The next version. It fits.
  void apply(const LogRecord& record, const wire::Buffer& body);

  struct Contents {
    wire::Buffer values;
    Version changed_at = 0;
    std::uint64_t num_updates = 0;
  };
  /// The contents for a pull of a chunk, or of `keys`; of a table that may not be known here yet: its initial
  /// values. It was not rejected.
  Contents read(const TableSpec& spec, const Pull& pull, const wire::Buffer& keys) const;
  /// Why such a request that changes values, or pull, cannot be taken; kNone when it can.
  static ErrorKind rejection(const TableSpec& spec, RequestOp op, std::uint64_t chunk,
                             std::span<const std::byte> body);
  static ErrorKind rejection(const TableSpec& spec, const Pull& pull, std::span<const std::byte> body);

  /// Everything, at this version, in parts of at most a chunk each; copies share their values.
  struct Part {
    SnapshotPart head;
    std::variant<std::vector<std::byte>, DenseChunk, SparseTable::Part> contents;
    std::vector<std::byte> flat() const;
  };
  std::vector<Part> snapshot() const;
  /// Tables and their contents at this version, for a file: no copy, and to be read on any thread.
  PartContents contents() const;
  /// Takes part 0, 1, 2, ... into an empty state. Whether it is one.
  bool install(const SnapshotPart& head, const wire::Buffer& body);

  std::uint64_t digest() const;
  struct Size {
    std::uint64_t rows = 0;                 ///< of sparse tables
    std::uint64_t elements = 0, bytes = 0;  ///< values; and with optimizer state
  };
  Size size() const;

 private:
  struct Meta;
  void apply_update(const LoggedUpdate& update, std::span<const std::byte> bytes);
  void apply_request(const LoggedRequest& request);
  void take_joins(const LogRecord& record);
  void apply_rows(const LoggedUpdate& update, const TableSpec& spec, std::span<const std::byte> bytes);
  Contents read_rows(const TableSpec& spec, const KeyBatch& keys) const;
  void raise_min_clock();
  const TableSpec* table(TableId id, const std::vector<TableSpec>& more) const;

  Version version_ = 0;
  WorkerClock min_clock_ = 0;
  std::map<TableId, TableSpec> tables_;
  std::map<WorkerLife, WorkerState> workers_;
  ExpectedWorkers expected_;
  std::map<ChunkKey, DenseChunk> chunks_;
  std::map<TableId, SparseTable> sparse_;
};

}  // namespace trireme::ps
