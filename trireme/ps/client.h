#pragma once
// A worker's connection to a parameter server, for programs: a thread of the client runs a ClientNode
// (client_node.h), and every call returns at once with a Pending. The node's header has the guarantees of
// each call. Calls of one thread take effect in their order; any thread may call.
//
//   ps::Client client({.worker = 0, .coordinator = "tcp:127.0.0.1:29600"});
//   const ps::TableId table = client.open_table({.name = "weights", .num_elements = 1000});
//   client.push(table, gradient);          // may be dropped: errors of it are the next pull's
//   client.tick();
//   client.pull(table, weights).get();

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/ps/client_node.h"
#include "trireme/wire/node_loop.h"

namespace trireme::ps {

/// A call that is under way; copies are the same call. Dropping it ends nothing.
class Pending {
 public:
  bool is_done() const;
  /// The result, errors included; none when it is not known after so long.
  std::optional<Result> wait_for(double seconds) const;
  /// Waits. Throws InvalidArgument (an unknown table, a wrong size) or DataError (every replica of the
  /// requested data has ended). Throws CommError if no answer came in time, or if the cluster has declared
  /// this worker dead.
  Result get() const;

 private:
  friend class Client;
  struct SharedState;
  explicit Pending(std::shared_ptr<SharedState> state) : state_(std::move(state)) {}
  std::shared_ptr<SharedState> state_;
};

class Client {
 public:
  /// Returns when this worker is a member of the cluster. `loop` sets the security of connections; it does
  /// not listen. Throws CommError when that takes longer than options.timeout_s, with the tried addresses.
  explicit Client(ClientOptions options, wire::NodeLoopOptions loop = {});
  /// Of a program that `trireme launch -n N --servers M` has started: worker RANK, of the coordinator at
  /// TRIREME_PS_COORDINATOR, with the secret or key of TRIREME_PS_SECRET, else TRIREME_PS_SECRET_FILE, else
  /// TRIREME_SECRET, where there is one. `options`: worker, host and coordinator are set here, and
  /// num_workers, where it is 0, to WORLD_SIZE. Throws InvalidArgument that names the missing variable.
  static std::unique_ptr<Client> from_environment(ClientOptions options = {});
  /// Leaves as one that has died would, unless leave() was called: the others wait for the lease. Calls that
  /// are under way fail.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// The cluster's present map, as this worker has it.
  ClusterMap map() const;
  WorkerClock clock() const;
  WorkerLife life() const;

  /// Makes the table where it is not there yet, and lets this worker's steps count for it. Waits. Throws as
  /// Pending::get() does, and InvalidArgument where it is there and another one.
  TableId open_table(const TableSpec& spec);

  /// Values are copied, or, as a Buffer, shared and not changed until the call is done. Of a push that is
  /// rejected before anything is sent (a wrong size, too many for a step), only its Pending has the error.
  Pending push(TableId table, std::span<const float> values, PushOptions options = {});
  Pending push(TableId table, wire::Buffer values, PushOptions options = {});
  Pending push_chunk(TableId table, std::uint64_t chunk, wire::Buffer values, PushOptions options = {});
  Pending assign(TableId table, std::span<const float> values);
  Pending restore_chunk(TableId table, std::uint64_t chunk, wire::Buffer values_and_state,
                        std::uint64_t num_updates);
  /// `out` belongs to the call until it is done or failed, or this object is destroyed.
  Pending pull(TableId table, std::span<float> out, CallOptions options = {});
  Pending pull_chunk(TableId table, std::uint64_t chunk, Version newer_than = 0, CallOptions options = {});
  Pending pull_chunk(TableId table, std::uint64_t chunk, std::span<float> out, CallOptions options = {});
  Pending pull_state(TableId table, std::uint64_t chunk, CallOptions options = {});
  Pending push_pull(TableId table, std::span<const float> values, std::span<float> out,
                    PushOptions options = {});
  /// Rows of a sparse table, as ClientNode has them; keys and rows are copied.
  Pending push_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows,
                    PushOptions options = {});
  Pending assign_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows);
  Pending pull_rows(TableId table, std::span<const std::uint64_t> keys, std::span<float> out,
                    CallOptions options = {});
  Pending push_pull_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows,
                         std::span<float> out, PushOptions options = {});
  void tick();
  Pending barrier(std::uint32_t num_workers);
  Pending leave();

  /// Saves all tables in a new folder "checkpoint-N" of `folder`, which servers see under the same name, and
  /// waits; other workers continue meanwhile. Returns that folder. `keep`: number of whole checkpoints that
  /// stay, with this one; 0: all. See ClientNode::save(). Throws DataError that names the part that was not
  /// written, CommError; then earlier checkpoints are unchanged.
  std::filesystem::path checkpoint(const std::filesystem::path& folder, std::size_t keep = 0);
  /// Restores all tables from the last whole checkpoint of `folder`, or from this one, for any servers and
  /// partitions of its origin. Optimizer state and counts of updates are included. Returns the checkpoint.
  /// Lost partitions are usable again. Waits; no other worker should push meanwhile. The worker has joined
  /// the tables then. Throws DataError, before any change, for missing or damaged files; InvalidArgument for
  /// a table that exists with another size or kind; and CommError, with its progress.
  std::filesystem::path restore(const std::filesystem::path& folder);

  /// A call of the node that has no function here.
  Pending call(std::function<void(ClientNode&, Done)> begin);
  /// Runs `use` with the node, on its thread, and waits for it: for functions of the node that have no call
  /// here.
  void with_node(const std::function<void(ClientNode&)>& use) const;

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

/// The error as an exception of the hierarchy; see Pending::get().
[[noreturn]] void throw_error(const Result& result);

}  // namespace trireme::ps
