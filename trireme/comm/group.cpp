#include "trireme/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/comm/internal/arguments.h"
#include "trireme/comm/internal/coalesced_exchange.h"
#include "trireme/comm/internal/group_state.h"
#include "trireme/comm/internal/pending_state.h"
#include "trireme/comm/internal/unequal_parts.h"

namespace trireme::comm {
namespace {

using Mode = IssueMode;
c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAverage:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
  }
  throw InternalError("unknown ReduceOp");
}

Operation operation_on(OperationKind kind, const at::Tensor& part, int peer = -1,
                       ReduceOp reduce = ReduceOp::kSum) {
  return {.kind = kind, .dtype = part.scalar_type(), .numel = part.numel(), .peer = peer, .reduce = reduce};
}

Tensors parts_of(const at::Tensor& whole, int size) {
  const auto flat = whole.view({-1});
  const std::int64_t numel = flat.numel() / size;
  Tensors parts;
  for (int i = 0; i < size; ++i) parts.push_back(flat.narrow(0, i * numel, numel));
  return parts;
}

void nothing() {}

Pending all_reduce(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& tensor,
                   ReduceOp op) {
  check_tensor("all_reduce", "tensor", tensor);
  check_reduce("all_reduce", tensor, op);
  return Group::State::issue(
      state, mode, operation_on(OperationKind::kAllReduce, tensor, -1, op), {tensor},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        c10d::AllreduceOptions options;
        options.reduceOp = to_c10d(op);
        options.asyncOp = is_async;
        return backend.allreduce(tensors, options);
      },
      nothing);
}

Pending reduce_scatter(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& output,
                       const at::Tensor& input, ReduceOp op) {
  check_parts("reduce_scatter", "input", input, "output", output, state->size());
  check_reduce("reduce_scatter", output, op);
  return Group::State::issue(
      state, mode, operation_on(OperationKind::kReduceScatter, output, -1, op), {output, input},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        c10d::ReduceScatterOptions options;
        options.reduceOp = to_c10d(op);
        options.asyncOp = is_async;
        return backend._reduce_scatter_base(tensors[0], tensors[1], options);
      },
      [&] { output.copy_(input.view_as(output)); });
}

/// `tensors`: output and input.
UnequalParts unequal_parts(const Group::State& state, const Tensors& tensors,
                           const std::vector<std::int64_t>& rows) {
  return {.output = tensors[0],
          .input = tensors[1],
          .rows = rows,
          .rank = state.parts.world_ranks[static_cast<std::size_t>(state.parts.rank)]};
}

Pending reduce_scatter(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& output,
                       const at::Tensor& input, const std::vector<std::int64_t>& rows, ReduceOp op) {
  check_rows_of_ranks("reduce_scatter", "input", input, "output", output, rows, state->parts);
  check_reduce("reduce_scatter", output, op);
  // The whole and the rows are equal on all ranks, so these are compared.
  Operation operation = operation_on(OperationKind::kReduceScatter, input, -1, op);
  operation.layout = layout_of(rows);
  return Group::State::issue(
      state, mode, operation, {output, input},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        return start_unequal_reduce_scatter(unequal_parts(*state, tensors, rows), to_c10d(op), backend,
                                            is_async);
      },
      [&] { output.copy_(input); });
}

Pending all_gather(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& output,
                   const at::Tensor& input) {
  check_parts("all_gather", "output", output, "input", input, state->size());
  return Group::State::issue(
      state, mode, operation_on(OperationKind::kAllGather, input), {output, input},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        c10d::AllgatherOptions options;
        options.asyncOp = is_async;
        return backend._allgather_base(tensors[0], tensors[1], options);
      },
      [&] { output.copy_(input.view_as(output)); });
}

Pending all_gather(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& output,
                   const at::Tensor& input, const std::vector<std::int64_t>& rows) {
  check_rows_of_ranks("all_gather", "output", output, "input", input, rows, state->parts);
  Operation operation = operation_on(OperationKind::kAllGather, output);
  operation.layout = layout_of(rows);
  return Group::State::issue(
      state, mode, operation, {output, input},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        return start_unequal_all_gather(unequal_parts(*state, tensors, rows), backend, is_async);
      },
      [&] { output.copy_(input); });
}

Pending broadcast(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& tensor, int root) {
  check_tensor("broadcast", "tensor", tensor);
  check_rank("broadcast", "root", root, state->parts);
  return Group::State::issue(
      state, mode, operation_on(OperationKind::kBroadcast, tensor, root), {tensor},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        c10d::BroadcastOptions options;
        options.rootRank = root;
        options.asyncOp = is_async;
        return backend.broadcast(tensors, options);
      },
      nothing);
}

Pending reduce(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& tensor, int root,
               ReduceOp op) {
  check_tensor("reduce", "tensor", tensor);
  check_rank("reduce", "root", root, state->parts);
  check_reduce("reduce", tensor, op);
  return Group::State::issue(
      state, mode, operation_on(OperationKind::kReduce, tensor, root, op), {tensor},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        c10d::ReduceOptions options;
        options.reduceOp = to_c10d(op);
        options.rootRank = root;
        options.asyncOp = is_async;
        return backend.reduce(tensors, options);
      },
      nothing);
}

Pending gather(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& output,
               const at::Tensor& input, int root) {
  check_rank("gather", "root", root, state->parts);
  check_tensor("gather", "input", input);
  const bool is_root = state->parts.rank == root;
  if (is_root) check_parts("gather", "output", output, "input", input, state->size());
  return Group::State::issue(
      state, mode, operation_on(OperationKind::kGather, input, root), {output, input},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        std::vector<Tensors> outputs;
        if (is_root) outputs.push_back(parts_of(tensors[0], state->size()));
        Tensors inputs{tensors[1].view({-1})};
        c10d::GatherOptions options;
        options.rootRank = root;
        options.asyncOp = is_async;
        return backend.gather(outputs, inputs, options);
      },
      [&] { output.copy_(input.view_as(output)); });
}

Pending scatter(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& output,
                const at::Tensor& input, int root) {
  check_rank("scatter", "root", root, state->parts);
  check_tensor("scatter", "output", output);
  const bool is_root = state->parts.rank == root;
  if (is_root) check_parts("scatter", "input", input, "output", output, state->size());
  return Group::State::issue(
      state, mode, operation_on(OperationKind::kScatter, output, root), {output, input},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        std::vector<Tensors> inputs;
        if (is_root) inputs.push_back(parts_of(tensors[1], state->size()));
        Tensors outputs{tensors[0].view({-1})};
        c10d::ScatterOptions options;
        options.rootRank = root;
        options.asyncOp = is_async;
        return backend.scatter(outputs, inputs, options);
      },
      [&] { output.copy_(input.view_as(output)); });
}

/// Without splits: flat, in equal parts.
Pending exchange(const std::shared_ptr<Group::State>& state, Mode mode, const Operation& operation,
                 const at::Tensor& output, const at::Tensor& input, const RowSplits& rows) {
  return Group::State::issue(
      state, mode, operation, {output, input},
      [&](c10d::Backend& backend, bool is_async, Tensors& tensors) {
        c10d::AllToAllOptions options;
        options.asyncOp = is_async;
        std::vector<std::int64_t> from = rows.from, to = rows.to;
        return backend.alltoall_base(tensors[0], tensors[1], from, to, options);
      },
      [&] { output.copy_(input.view_as(output)); });
}

Pending all_to_all(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& output,
                   const at::Tensor& input) {
  check_tensor("all_to_all", "output", output);
  check_tensor("all_to_all", "input", input);
  const int size = state->size();
  require(output.scalar_type() == input.scalar_type() && output.numel() == input.numel(),
          "all_to_all: 'output' has ", output.numel(), " elements of ", name_of(output.scalar_type()),
          ", but 'input' has ", input.numel(), " of ", name_of(input.scalar_type()));
  require(input.numel() % size == 0, "all_to_all: 'input' has ", input.numel(),
          " elements, which cannot be split into ", size, " equal parts");
  return exchange(state, mode, operation_on(OperationKind::kAllToAll, input), output.view({-1}),
                  input.view({-1}), {});
}

Pending all_to_all(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& output,
                   const at::Tensor& input, const RowSplits& rows) {
  check_tensor("all_to_all", "output", output);
  check_tensor("all_to_all", "input", input);
  check_rows("all_to_all", "output", output, rows.from, state->size());
  check_rows("all_to_all", "input", input, rows.to, state->size());
  check_exchanged_rows("all_to_all", output, input, rows, state->parts.rank);
  // Numbers of elements differ between ranks, so none is compared.
  Operation operation = operation_on(OperationKind::kAllToAll, input);
  operation.numel = 0;
  return exchange(state, mode, operation, output, input, rows);
}

Pending all_to_all_coalesced(const std::shared_ptr<Group::State>& state, Mode mode,
                             const std::vector<TensorExchange>& pairs) {
  const auto exchange = std::make_shared<const CoalescedExchange>(pairs, state->parts);
  const Operation operation{.kind = OperationKind::kAllToAllCoalesced,
                            .numel = static_cast<std::int64_t>(pairs.size()),
                            .layout = exchange->layout()};
  return Group::State::issue(
      state, mode, operation, exchange->tensors(),
      [&](c10d::Backend& backend, bool is_async, Tensors&) {
        return start_exchange(exchange, backend, is_async);
      },
      [&] { exchange->copy_own(); });
}

// Sends and receives between two ranks match in order: no tag is needed.
constexpr int kTag = 0;

Pending send(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& tensor,
             int destination) {
  check_tensor("send", "tensor", tensor);
  check_peer("send", "destination", destination, state->parts);
  return Group::State::issue(
      state, mode, operation_on(OperationKind::kSend, tensor, destination), {tensor},
      [&](c10d::Backend& backend, bool, Tensors& tensors) {
        return backend.send(tensors, destination, kTag);
      },
      nothing);
}

Pending recv(const std::shared_ptr<Group::State>& state, Mode mode, const at::Tensor& tensor, int source) {
  check_tensor("recv", "tensor", tensor);
  check_peer("recv", "source", source, state->parts);
  return Group::State::issue(
      state, mode, operation_on(OperationKind::kRecv, tensor, source), {tensor},
      [&](c10d::Backend& backend, bool, Tensors& tensors) { return backend.recv(tensors, source, kTag); },
      nothing);
}

at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::kByte); }

}  // namespace

void Pending::wait() {
  if (state_) state_->wait();
}

bool Pending::done() const { return !state_ || state_->done(); }

int Group::rank() const { return state_->parts.rank; }
int Group::size() const { return state_->size(); }
const std::string& Group::name() const { return state_->parts.name; }
const std::string& Group::backend_name() const { return state_->parts.backend_name; }
Transport Group::transport(c10::Device device) const {
  return device.is_cpu() ? Transport::kBuffered : state_->parts.transport_of_device;
}
const std::vector<int>& Group::world_ranks() const { return state_->parts.world_ranks; }
double Group::timeout_s() const { return state_->parts.timeout_s; }

Pending Group::all_reduce_async(const at::Tensor& tensor, ReduceOp op) {
  return comm::all_reduce(state_, Mode::kAsync, tensor, op);
}
void Group::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  comm::all_reduce(state_, Mode::kSync, tensor, op);
}

Pending Group::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  return comm::reduce_scatter(state_, Mode::kAsync, output, input, op);
}
void Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  comm::reduce_scatter(state_, Mode::kSync, output, input, op);
}
Pending Group::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                                    const std::vector<std::int64_t>& rows, ReduceOp op) {
  return comm::reduce_scatter(state_, Mode::kAsync, output, input, rows, op);
}
void Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<std::int64_t>& rows, ReduceOp op) {
  comm::reduce_scatter(state_, Mode::kSync, output, input, rows, op);
}

Pending Group::all_gather_async(const at::Tensor& output, const at::Tensor& input) {
  return comm::all_gather(state_, Mode::kAsync, output, input);
}
void Group::all_gather(const at::Tensor& output, const at::Tensor& input) {
  comm::all_gather(state_, Mode::kSync, output, input);
}
Pending Group::all_gather_async(const at::Tensor& output, const at::Tensor& input,
                                const std::vector<std::int64_t>& rows) {
  return comm::all_gather(state_, Mode::kAsync, output, input, rows);
}
void Group::all_gather(const at::Tensor& output, const at::Tensor& input,
                       const std::vector<std::int64_t>& rows) {
  comm::all_gather(state_, Mode::kSync, output, input, rows);
}

Pending Group::broadcast_async(const at::Tensor& tensor, int root) {
  return comm::broadcast(state_, Mode::kAsync, tensor, root);
}
void Group::broadcast(const at::Tensor& tensor, int root) {
  comm::broadcast(state_, Mode::kSync, tensor, root);
}

Pending Group::reduce_async(const at::Tensor& tensor, int root, ReduceOp op) {
  return comm::reduce(state_, Mode::kAsync, tensor, root, op);
}
void Group::reduce(const at::Tensor& tensor, int root, ReduceOp op) {
  comm::reduce(state_, Mode::kSync, tensor, root, op);
}

Pending Group::gather_async(const at::Tensor& output, const at::Tensor& input, int root) {
  return comm::gather(state_, Mode::kAsync, output, input, root);
}
void Group::gather(const at::Tensor& output, const at::Tensor& input, int root) {
  comm::gather(state_, Mode::kSync, output, input, root);
}

Pending Group::scatter_async(const at::Tensor& output, const at::Tensor& input, int root) {
  return comm::scatter(state_, Mode::kAsync, output, input, root);
}
void Group::scatter(const at::Tensor& output, const at::Tensor& input, int root) {
  comm::scatter(state_, Mode::kSync, output, input, root);
}

Pending Group::all_to_all_async(const at::Tensor& output, const at::Tensor& input) {
  return comm::all_to_all(state_, Mode::kAsync, output, input);
}
void Group::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  comm::all_to_all(state_, Mode::kSync, output, input);
}
Pending Group::all_to_all_async(const at::Tensor& output, const at::Tensor& input, const RowSplits& rows) {
  return comm::all_to_all(state_, Mode::kAsync, output, input, rows);
}
void Group::all_to_all(const at::Tensor& output, const at::Tensor& input, const RowSplits& rows) {
  comm::all_to_all(state_, Mode::kSync, output, input, rows);
}

Pending Group::all_to_all_coalesced_async(const std::vector<TensorExchange>& pairs) {
  return comm::all_to_all_coalesced(state_, Mode::kAsync, pairs);
}
void Group::all_to_all_coalesced(const std::vector<TensorExchange>& pairs) {
  comm::all_to_all_coalesced(state_, Mode::kSync, pairs);
}

Pending Group::send_async(const at::Tensor& tensor, int destination) {
  return comm::send(state_, Mode::kAsync, tensor, destination);
}
void Group::send(const at::Tensor& tensor, int destination) {
  comm::send(state_, Mode::kSync, tensor, destination);
}

Pending Group::recv_async(const at::Tensor& tensor, int source) {
  return comm::recv(state_, Mode::kAsync, tensor, source);
}
void Group::recv(const at::Tensor& tensor, int source) { comm::recv(state_, Mode::kSync, tensor, source); }

void Group::barrier() {
  State::issue(
      state_, Mode::kSync, Operation{.kind = OperationKind::kBarrier}, {},
      [](c10d::Backend& backend, bool is_async, Tensors&) {
        c10d::BarrierOptions options;
        options.asyncOp = is_async;
        return backend.barrier(options);
      },
      nothing);
}

std::vector<std::string> Group::all_gather_text(const std::string& mine) {
  at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(mine.size());
  at::Tensor lengths = at::empty({size()}, at::kLong);
  all_gather(lengths, length);
  const auto* counts = lengths.const_data_ptr<std::int64_t>();
  const std::int64_t longest = *std::max_element(counts, counts + size());
  if (longest == 0) return std::vector<std::string>(static_cast<std::size_t>(size()));
  at::Tensor padded = bytes(longest);
  std::memset(padded.mutable_data_ptr(), 0, static_cast<std::size_t>(longest));
  std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor all = bytes(longest * size());
  all_gather(all, padded);
  std::vector<std::string> result;
  const char* text_of_all = static_cast<const char*>(all.const_data_ptr());
  for (int i = 0; i < size(); ++i) {
    result.emplace_back(text_of_all + i * longest, static_cast<std::size_t>(counts[i]));
  }
  return result;
}

at::Tensor Group::allocate(std::int64_t numel, const at::TensorOptions& options) const {
  const auto& backend = state_->parts.backend;
  const bool has_own = backend && options.device().is_cpu() && backend->supportsTensorAlloc(0);
  if (!has_own) return at::zeros({numel}, options);
  return backend->allocateTensor(numel, options).zero_();
}

void Group::fail(const std::string& why) {
  const int world_rank = world_ranks()[static_cast<std::size_t>(rank())];
  state_->fail(text("rank ", world_rank, ", group '", name(), "': ", why));
}

void Group::check() const { state_->check(); }

std::vector<OperationRecord> Group::recent_operations() const {
  std::vector<OperationRecord> records;
  for (const auto& operation : state_->recent()) records.push_back(operation.record());
  return records;
}

telemetry::Trace* Group::trace() const { return state_->trace(); }

c10d::Backend& Group::backend() const {
  require(state_->parts.backend.defined(), "group '", name(), "' has one rank and therefore no backend");
  return *state_->parts.backend;
}

}  // namespace trireme::comm
