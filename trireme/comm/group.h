#pragma once
// A Group is a set of ranks that communicate: MPI's communicator, torch's process group. A cheap handle;
// copies share one state. Every operation is numbered, checked against what the other ranks issue (operation,
// dtype, size, root, order), kept in a ring of the last operations and in the rank's StatusPage, and ends by
// its deadline: with its result, or with a CommError that names operation, number, group and the rank to
// blame. After one failure every pending and later operation of the group fails with that first cause.
//
// One thread issues operations on a group (collective: every rank calls them in the same order); waiting is
// allowed from any thread. Tensors are contiguous, lie on the CPU or on the context's device, on all ranks
// alike, and stay alive and untouched until the operation is done. Those of a device travel between devices
// (nccl), or by way of the host's memory, which waits for the device, and puts results where they belong when
// the operation is waited for.
// A group of one rank returns at once: user code needs no "am I distributed" branch.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
}

namespace trireme::telemetry {
class Trace;
}

namespace trireme::comm {

/// Whether a send ends by itself, or waits for its receive.
enum class Transport { kBuffered, kRendezvous };

/// How elements of the ranks become one. kAverage is the sum divided by the number of ranks.
enum class ReduceOp { kSum, kAverage, kMin, kMax, kProduct };

/// One entry of the ring of last operations.
struct OperationRecord {
  std::uint64_t number = 0;  ///< 1 for the group's first operation
  std::string operation;     ///< "all_reduce", ...
  std::string dtype;         ///< "f32", ...; empty for barrier
  std::int64_t numel = 0;
  int peer = -1;  ///< root, source or destination; -1 where there is none
  enum class State { kIssued, kDone, kFailed } state = State::kIssued;
  double issued_s = 0;  ///< monotonic clock
  double done_s = 0;
  /// "all_reduce #57, 6553600 f32, running for 12 ms"
  std::string describe() const;
};

/// An operation under way. Dropping it does not cancel it. A default-made one is done.
class Pending {
 public:
  Pending() = default;
  /// Waits for the end of the operation; for nccl: orders the current stream behind it. Throws CommError.
  void wait();
  /// True when it is over, well or not. Never waits; false while another thread is in wait().
  bool done() const;

 private:
  friend class Group;
  struct State;
  explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// How the rows (dim 0) of two tensors are split over the ranks of a group: one number for each rank.
struct RowSplits {
  std::vector<std::int64_t> to;    ///< rows of the input for each rank
  std::vector<std::int64_t> from;  ///< rows of the output from each rank
};

/// Two tensors of an exchange with others. Without rows: of equal parts.
struct TensorExchange {
  at::Tensor output, input;
  RowSplits rows = {};
};

class Group {
 public:
  struct State;
  explicit Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const;
  int size() const;
  const std::string& name() const;
  const std::string& backend_name() const;
  /// How messages behave whose tensors lie there.
  Transport transport(c10::Device device) const;
  /// World ranks of the members, in group order.
  const std::vector<int>& world_ranks() const;
  double timeout_s() const;

  // Each collective exists as `x_async`, which returns at once, and `x`, which waits.

  /// In place. Every rank ends with the reduction over all ranks, summed in rank order (gloo: its own order).
  Pending all_reduce_async(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  void all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);

  /// `input`: size() * output.numel() elements. Rank r gets part r of the sums. `output` may lie there in it.
  Pending reduce_scatter_async(at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum);
  void reduce_scatter(at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum);

  /// `output` has size() * input.numel() elements; part r is rank r's input, which may lie there.
  Pending all_gather_async(at::Tensor& output, const at::Tensor& input);
  void all_gather(at::Tensor& output, const at::Tensor& input);

  /// In place, from group rank `root` to all.
  Pending broadcast_async(at::Tensor& tensor, int root);
  void broadcast(at::Tensor& tensor, int root);

  /// In place on `root`; what the others' tensors hold afterwards is unspecified.
  Pending reduce_async(at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);
  void reduce(at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);

  /// On `root`, `output` has size() * input.numel() elements; elsewhere it may be undefined.
  Pending gather_async(at::Tensor& output, const at::Tensor& input, int root);
  void gather(at::Tensor& output, const at::Tensor& input, int root);

  /// On `root`, `input` has size() * output.numel() elements; elsewhere it may be undefined.
  Pending scatter_async(at::Tensor& output, const at::Tensor& input, int root);
  void scatter(at::Tensor& output, const at::Tensor& input, int root);

  /// Part j of `input` goes to rank j; part i of `output` comes from rank i. Equal parts.
  Pending all_to_all_async(at::Tensor& output, const at::Tensor& input);
  void all_to_all(at::Tensor& output, const at::Tensor& input);
  /// The same with unequal parts, as mixtures of experts exchange tokens: `rows.to[j]` rows of `input` (dim
  /// 0) go to rank j, and `rows.from[i]` rows of `output` come from rank i, which sends as many; 0 is
  /// allowed. Both tensors have the same further sizes. Throws InvalidArgument: numbers that do not add up;
  /// CommError where two ranks differ in what the one sends the other, at the deadline over gloo.
  Pending all_to_all_async(at::Tensor& output, const at::Tensor& input, const RowSplits& rows);
  void all_to_all(at::Tensor& output, const at::Tensor& input, const RowSplits& rows);

  /// All these exchanges as one operation, in which a rank sends each other one a single message. Pairs may
  /// differ in dtype, sizes and rows; all lie on one device, and none overlaps another. All ranks name as
  /// many pairs, in the same order. The outputs are written by wait(), whatever done() has said. Costs a copy
  /// of each tensor, and on a GPU waiting waits for the exchange. Throws InvalidArgument that names the pair,
  /// as all_to_all() does; CommError where ranks differ in the number of pairs, or in dtype or elements of
  /// one: nothing is written then.
  Pending all_to_all_coalesced_async(const std::vector<TensorExchange>& pairs);
  void all_to_all_coalesced(const std::vector<TensorExchange>& pairs);

  /// Rank `destination` of the group gets the tensor, in a recv of the same type and size; messages of a pair
  /// of ranks arrive in the order of sending. Whether a send ends before its receive has come, transport()
  /// says. `source` is a rank of the group, never "any". Throws CommError.
  Pending send_async(const at::Tensor& tensor, int destination);
  void send(const at::Tensor& tensor, int destination);
  Pending recv_async(at::Tensor& tensor, int source);
  void recv(at::Tensor& tensor, int source);

  /// Returns when every rank has called it. Throws CommError at the deadline, with the ranks that have not
  /// come.
  void barrier();

  /// Text of every rank, in rank order. Any lengths. For set-up and reports, not for the inner loop.
  std::vector<std::string> all_gather_text(const std::string& mine);

  /// A flat tensor of that type and device. On the CPU it lies in the memory that this group's backend
  /// reduces in place without a copy (shared memory for shm), where it has such. Not collective. Zeroed.
  at::Tensor allocate(std::int64_t numel, const at::TensorOptions& options) const;

  /// A flat tensor that is one memory on all ranks: what one of them writes, all read. Zeroed, and gone with
  /// the last rank that holds it. Undefined where the ranks have no memory in common: on several hosts, on a
  /// device. Who writes what, and when, is for the ranks to agree on: an operation of the group that comes
  /// after a write and before a read orders the two. Collective. Throws CommError, on all ranks, with the
  /// first rank that has no memory left, or may not map another's.
  at::Tensor allocate_common(std::int64_t numel, const at::TensorOptions& options);
  /// Whether the ranks have memory in common for tensors on that device. Not collective.
  bool has_common_memory(c10::Device device) const;

  /// Gives the group up on all ranks, for a caller that knows that this one is not in step with the others:
  /// what is pending and what comes later fails with "rank R, group 'G': WHY". Nothing more happens to a
  /// group that has failed. Any thread.
  void fail(const std::string& why);
  /// Throws the first failure of a group that has failed.
  void check() const;

  /// The last operations, oldest first (at most 64).
  std::vector<OperationRecord> recent_operations() const;

  /// Where this rank's spans go; null when nothing is traced.
  telemetry::Trace* trace() const;

  /// The c10d backend below, for libraries that want one.
  c10d::Backend& backend() const;

  /// For this module.
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trireme::comm
