#pragma once
// A worker's side of the parameter server, as a node. A request is sent to the primary of its map. It is sent
// again, under the same number, when roles change or connections break, until it is acknowledged: so no
// request is lost or counts twice. Calls return at once. The result is passed to the callback, once, on the
// thread of the node's surroundings, on which all calls come.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/cluster_map.h"
#include "trireme/ps/messages.h"
#include "trireme/wire/node.h"

namespace trireme::ps {

/// The worker's identity, its cluster, and its timeouts.
struct ClientOptions {
  WorkerId worker = 0;  ///< its rank: sums in worker order follow it
  std::string host = {};
  wire::Address coordinator = {};
  /// Workers that train together, this one included. In tables with a clock (TableSpec::staleness) no step
  /// counts as ended by all before so many have joined. So the first worker does not run ahead alone. 0 or 1:
  /// none is waited for, as where a table is of one worker alone. Later workers may join and leave.
  std::uint32_t num_workers = 0;
  double heartbeat_s = 0.2;
  double tick_s = 0.05;
  double retry_s = 1;                   ///< unanswered requests are repeated
  double timeout_s = 30;                ///< of every call
  std::size_t credit_bytes = 64 << 20;  ///< of pushes that are not acknowledged
};

/// Result of a call.
struct Result {
  ErrorKind error = ErrorKind::kNone;
  std::string message;            ///< for people; empty without an error
  Version version = 0;            ///< the highest of the partitions that answered
  WorkerClock min_clock = 0;      ///< the lowest of them
  bool changed = true;            ///< of a pull of one chunk: false where only newer values were wanted
  wire::Buffer values;            ///< of a pull of one chunk
  std::uint64_t num_updates = 0;  ///< that these values have had
};
/// Called once with the result of a call, on the thread of the node's surroundings.
using Done = std::function<void(const Result&)>;
/// The same of a save, with the files that it has written.
using Saved = std::function<void(const Result&, const std::vector<SavedPart>&)>;

/// How soon a call is wanted. A deadline is looked at every ClientOptions::tick_s.
struct CallOptions {
  wire::Priority priority = 4;  ///< of its messages, and of answers with values: 0 goes first
  double timeout_s = 0;         ///< then it fails with kTimeout; 0: that of the client
};

/// How a push is applied, and how soon it is wanted.
struct PushOptions {
  double lr = kTableRate;       ///< with which it is applied; pushes of one step and rate are added up before
  wire::Priority priority = 4;  ///< as in CallOptions
  double timeout_s = 0;         ///< the same; a request that was sent may be applied later, once
  CallOptions call() const { return {priority, timeout_s}; }
};

class ClientWork;

class ClientNode final : public wire::Node {
 public:
  explicit ClientNode(ClientOptions options);
  ~ClientNode() override;

  const ClusterMap& map() const;
  /// How many steps it has ended.
  WorkerClock clock() const;
  WorkerLife life() const;
  /// The error-feedback residual of a chunk's pushes, which is added to the next push; empty where there
  /// never was one.
  std::span<const float> residual(TableId table, std::uint64_t chunk) const;
  /// Of all chunks of the table: values come that those gradients were not of.
  void forget_residuals(TableId table);

  /// Until the cluster counts this worker; other calls may come before.
  void wait_until_member(Done done);
  /// Every worker may ask for the same one; its id is ignored, and is to be had from map() when this is done.
  void create_table(const TableSpec& spec, Done done);
  /// This worker's steps count for the table from now on; they begin at clock(), which may rise.
  void join(TableId table, Done done);
  /// f32 values of one chunk, or of a whole table.
  void push_chunk(TableId table, std::uint64_t chunk, wire::Buffer values, Done done,
                  PushOptions options = {});
  void push(TableId table, const wire::Buffer& values, Done done, PushOptions options = {});
  /// Stores the values themselves, not a gradient; the optimizer state is reset.
  void assign(TableId table, const wire::Buffer& values, Done done);
  /// The result of pull_state(), of this or another cluster.
  void restore_chunk(TableId table, std::uint64_t chunk, wire::Buffer values_and_state,
                     std::uint64_t num_updates, Done done);
  /// Rows of a sparse table, or keys that are not admitted yet, which belong to this partition, in the format
  /// of a checkpoint (internal/restored_rows.h). The partition keeps its other rows, unless these rows are
  /// marked as the first of all.
  void restore_rows(TableId table, PartitionId partition, wire::Buffer rows, Done done);
  /// Includes this worker's earlier pushes, and others' within the table's staleness. `newer_than`: the
  /// version of an earlier result of the same chunk, 0 for any.
  void pull_chunk(TableId table, std::uint64_t chunk, Version newer_than, Done done,
                  CallOptions options = {});
  /// The values go to `out`, which is written until `done` is called.
  void pull_chunk(TableId table, std::uint64_t chunk, std::span<float> out, Done done,
                  CallOptions options = {});
  /// The same, with the optimizer's state after the values.
  void pull_state(TableId table, std::uint64_t chunk, Done done, CallOptions options = {});
  /// `out` is written until `done` is called.
  void pull(TableId table, std::span<float> out, Done done, CallOptions options = {});
  /// Adds, and returns the new values: one round trip. Where the push fails, no values are returned.
  void push_pull(TableId table, const wire::Buffer& values, std::span<float> out, Done done,
                 PushOptions options = {});
  /// Rows of a sparse table, one for each key, in any order: those of one key are added up first, as they
  /// come. `keys` and `rows` are read before it returns.
  void push_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows, Done done,
                 PushOptions options = {});
  /// Stores the rows themselves and resets their optimizer states. If a key is repeated, its last row counts.
  void assign_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows,
                   Done done);
  /// The row of each key, at the key's place in `keys`; of a key without a row, its initial values. The
  /// guarantees of pull() apply. `keys` is read before it returns, `out` is written until `done` is called.
  void pull_rows(TableId table, std::span<const std::uint64_t> keys, std::span<float> out, Done done,
                 CallOptions options = {});
  /// Adds, and returns the new values, as push_pull() does.
  void push_pull_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows,
                      std::span<float> out, Done done, PushOptions options = {});
  /// Every partition is written to a file of `folder`, which servers see and which begin_checkpoint() has
  /// made (checkpoint_file.h). `done` gets their entries for a manifest. Earlier requests of this worker to a
  /// partition are in its part. Later ones are not, and wait until the part is written. Where tables have
  /// clocks, parts of partitions that this worker uses are of its clock: see ADR 0044. One at a time. It has
  /// failed when no part was written for timeout_s.
  void save(const std::string& folder, Saved done);
  /// Lost partitions are there again, empty; done when none is lost. Tables have to be filled then.
  void begin_anew(Done done);
  /// Ends a step: earlier pushes belong to it.
  void tick();
  /// Until all workers, and `num_workers` at least, have come to as many barriers.
  void barrier(std::uint32_t num_workers, Done done);
  /// This worker does not count any more; other calls fail from now on.
  void leave(Done done);

  void on_start(wire::Surroundings& surroundings) override;
  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) override;
  void on_message(wire::ConnectionId connection, wire::Message message) override;
  void on_closed(wire::ConnectionId connection, wire::CloseCause cause, const std::string& reason) override;
  void on_timer(wire::TimerId timer) override;

 private:
  std::unique_ptr<ClientWork> work_;
};

}  // namespace trireme::ps
