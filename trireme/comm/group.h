#pragma once
// A Group is a set of ranks that communicate: MPI's communicator, torch's process group. A cheap handle;
// copies share one state. Every operation is numbered and checked against those of the other ranks
// (operation, dtype, size, root, order). A ring of the last operations and the rank's StatusPage record it.
// It ends by its deadline with its result or with a CommError. The error names operation, number, group and
// the failing rank. After one failure every pending and later operation of the group fails with that first
// cause.
//
// One thread issues operations on a group (collective: every rank calls them in the same order); waiting is
// allowed from any thread. Tensors are contiguous, on the CPU or on the context's device, the same on all
// ranks, and must not change until the operation is done. Tensors of a device are sent between devices
// (nccl), or through host memory. An operation through host memory waits for the device, and wait() writes
// its results. A group of one rank returns at once: user code needs no "am I distributed" branch.

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

/// Whether a send completes on its own, or waits for its receive.
enum class Transport { kBuffered, kRendezvous };

/// How elements of the ranks are combined. kAverage is the sum divided by the number of ranks.
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

/// A running operation. Dropping it does not cancel it. A default-constructed one is done.
class Pending {
 public:
  Pending() = default;
  /// Waits for the end of the operation; for nccl: the current stream waits for it. Throws CommError.
  void wait();
  /// True when it has ended, with or without an error. Never waits; false while another thread is in wait().
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

/// Two tensors of a coalesced exchange. Without rows: equal parts.
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
  /// How messages with tensors on that device behave.
  Transport transport(c10::Device device) const;
  /// World ranks of the members, in group order.
  const std::vector<int>& world_ranks() const;
  double timeout_s() const;

  // Each collective exists as `x_async`, which returns at once, and `x`, which waits. A tensor is a handle:
  // results are written to the memory of a temporary, too, as in `all_reduce(loss.detach())`.

  /// In place. Every rank ends with the reduction over all ranks, summed in rank order (gloo: its own order).
  Pending all_reduce_async(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);

  /// `input`: size() * output.numel() elements. Rank r gets part r of the sums. `output` may be that part of
  /// `input`.
  Pending reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                               ReduceOp op = ReduceOp::kSum);
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum);
  /// The same with unequal parts: rank r gets `rows[r]` rows (dim 0) of the sums; 0 is allowed. `rows` is the
  /// same on all ranks. Both tensors have the same further sizes and share no memory. The output is written
  /// by wait(), summed in rank order. Needs memory for size() outputs. Throws InvalidArgument: numbers that
  /// do not add up; CommError where ranks differ in `rows`.
  Pending reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                               const std::vector<std::int64_t>& rows, ReduceOp op = ReduceOp::kSum);
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<std::int64_t>& rows, ReduceOp op = ReduceOp::kSum);

  /// `output` has size() * input.numel() elements; part r is rank r's input, which may be that part of
  /// `output`.
  Pending all_gather_async(const at::Tensor& output, const at::Tensor& input);
  void all_gather(const at::Tensor& output, const at::Tensor& input);
  /// The same with unequal parts: `rows[r]` rows (dim 0) of `output` come from rank r; 0 is allowed. `rows`
  /// is the same on all ranks. Both tensors have the same further sizes. Needs memory for size() inputs.
  /// Throws as reduce_scatter() does.
  Pending all_gather_async(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<std::int64_t>& rows);
  void all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<std::int64_t>& rows);

  /// In place, from group rank `root` to all.
  Pending broadcast_async(const at::Tensor& tensor, int root);
  void broadcast(const at::Tensor& tensor, int root);

  /// In place on `root`. The tensors of the other ranks are unspecified afterwards.
  Pending reduce_async(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);
  void reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);

  /// On `root`, `output` has size() * input.numel() elements. On other ranks it may be undefined.
  Pending gather_async(const at::Tensor& output, const at::Tensor& input, int root);
  void gather(const at::Tensor& output, const at::Tensor& input, int root);

  /// On `root`, `input` has size() * output.numel() elements. On other ranks it may be undefined.
  Pending scatter_async(const at::Tensor& output, const at::Tensor& input, int root);
  void scatter(const at::Tensor& output, const at::Tensor& input, int root);

  /// Part j of `input` goes to rank j; part i of `output` comes from rank i. Equal parts.
  Pending all_to_all_async(const at::Tensor& output, const at::Tensor& input);
  void all_to_all(const at::Tensor& output, const at::Tensor& input);
  /// The same with unequal parts, as mixtures of experts exchange tokens: `rows.to[j]` rows of `input` (dim
  /// 0) go to rank j, and `rows.from[i]` rows of `output` come from rank i, which sends as many; 0 is
  /// allowed. Both tensors have the same further sizes. Throws InvalidArgument: numbers that do not add up;
  /// CommError where the rows that a rank sends are not those that the other expects: over gloo at the
  /// deadline.
  Pending all_to_all_async(const at::Tensor& output, const at::Tensor& input, const RowSplits& rows);
  void all_to_all(const at::Tensor& output, const at::Tensor& input, const RowSplits& rows);

  /// All these exchanges as one operation: each rank sends each other rank a single message. Pairs may differ
  /// in dtype, sizes and rows; all are on one device, and none overlaps another. All ranks pass the same
  /// number of pairs, in the same order. The outputs are written by wait(), regardless of done(). Costs a
  /// copy of each tensor; on a GPU wait() blocks until the exchange is complete. Throws InvalidArgument that
  /// names the pair, as all_to_all() does; CommError where ranks differ in the number of pairs, or in dtype
  /// or elements of one: nothing is written then.
  Pending all_to_all_coalesced_async(const std::vector<TensorExchange>& pairs);
  void all_to_all_coalesced(const std::vector<TensorExchange>& pairs);

  /// Rank `destination` of the group gets the tensor, in a recv of the same type and size. Messages of a pair
  /// of ranks are received in the order of sending. transport() returns whether a send can end before its
  /// receive is issued. `source` is a rank of the group, never "any". Throws CommError.
  Pending send_async(const at::Tensor& tensor, int destination);
  void send(const at::Tensor& tensor, int destination);
  Pending recv_async(const at::Tensor& tensor, int source);
  void recv(const at::Tensor& tensor, int source);

  /// Returns when every rank has called it. Throws CommError at the deadline, with the ranks that have not
  /// called it.
  void barrier();

  /// Text of every rank, in rank order. Any lengths. For set-up and reports, not for the inner loop.
  std::vector<std::string> all_gather_text(const std::string& mine);

  /// A flat tensor of that type and device. On the CPU it is in memory that this group's backend reduces in
  /// place without a copy (shared memory for shm), if it has any. Not collective. Zeroed.
  at::Tensor allocate(std::int64_t numel, const at::TensorOptions& options) const;

  /// A flat tensor in memory that all ranks share: one rank's writes are visible to all. Zeroed; freed with
  /// the last rank's tensor. Undefined where the ranks cannot share memory: on several hosts, on a device.
  /// The caller synchronizes access: an operation of the group between a write and a read orders the two.
  /// Collective. Throws CommError, on all ranks, with the first rank that has no memory left, or may not map
  /// another rank's.
  at::Tensor allocate_shared(std::int64_t numel, const at::TensorOptions& options);
  /// Whether the ranks can share memory for tensors on that device. Not collective.
  bool has_shared_memory(c10::Device device) const;

  /// Fails the group on all ranks, for a caller that detects that this rank is not in step with the others.
  /// Pending and later operations fail with "rank R, group 'G': WHY". No effect on a group that has failed
  /// already. Any thread.
  void fail(const std::string& why);
  /// Throws the first failure of a group that has failed.
  void check() const;

  /// The last operations, oldest first (at most 64).
  std::vector<OperationRecord> recent_operations() const;

  /// The trace of this rank's spans; null when nothing is traced.
  telemetry::Trace* trace() const;

  /// The c10d backend of the group, for libraries that need one.
  c10d::Backend& backend() const;

  /// For this module.
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trireme::comm
