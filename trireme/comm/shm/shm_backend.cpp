#include "trireme/comm/shm/internal/shm_backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <numeric>

#include "trireme/base/error.h"
#include "trireme/comm/shm/internal/shm_work.h"

namespace trireme::comm {
namespace {

using wire::Call;
using wire::CallKind;
using wire::Element;
using wire::Issue;
using wire::Reduction;
using wire::Transfer;
using Tensors = ShmBackend::Tensors;

Element element_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Element::kF32;
    case at::kDouble:
      return Element::kF64;
    case at::kBFloat16:
      return Element::kBf16;
    case at::kHalf:
      return Element::kF16;
    case at::kInt:
      return Element::kI32;
    case at::kLong:
      return Element::kI64;
    case at::kShort:
      return Element::kI16;
    case at::kChar:
      return Element::kI8;
    case at::kByte:
      return Element::kU8;
    case at::kBool:
      return Element::kBool;
    case at::kComplexFloat:
      return Element::kC64;
    case at::kComplexDouble:
      return Element::kC128;
    default:
      throw InvalidArgument(
          text("shared memory does not carry tensors of ", at::toString(tensor.scalar_type())));
  }
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return Reduction::kAverage;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    default:
      throw InvalidArgument("shared memory reduces with sum, average, min, max and product only");
  }
}

void check(const at::Tensor& tensor) {
  require(tensor.device().is_cpu() && tensor.is_contiguous(),
          "shared memory works on contiguous CPU tensors; found one on ", tensor.device().str(),
          tensor.is_contiguous() ? "" : " that is not contiguous");
}

const at::Tensor& only(const Tensors& tensors) {
  require(tensors.size() == 1, "expected one tensor, found ", tensors.size());
  check(tensors[0]);
  return tensors[0];
}

std::byte* bytes_at(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }
const std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

std::uint64_t count_of(const at::Tensor& tensor) { return static_cast<std::uint64_t>(tensor.numel()); }

/// Requires one list with a tensor per rank, each with the size and dtype of `one`.
const Tensors& one_per_rank(const std::vector<Tensors>& lists, const at::Tensor& one, int size) {
  require(lists.size() == 1 && lists[0].size() == static_cast<std::size_t>(size), "expected one list of ",
          size, " tensors");
  for (const at::Tensor& tensor : lists[0]) {
    check(tensor);
    require(tensor.numel() == one.numel() && tensor.scalar_type() == one.scalar_type(),
            "tensors of a list have to be of one size and type: found ", tensor.numel(), " and ", one.numel(),
            " elements");
  }
  return lists[0];
}

void check_whole(const at::Tensor& whole, const at::Tensor& part, int size) {
  check(whole);
  check(part);
  require(whole.numel() == part.numel() * size && whole.scalar_type() == part.scalar_type(), "expected ",
          size, " x ", part.numel(), " elements of one type, found ", whole.numel());
}

std::vector<std::uint64_t> offsets_of(const std::vector<std::int64_t>& splits, const at::Tensor& tensor,
                                      int size) {
  if (splits.empty()) {
    require(tensor.numel() % size == 0, tensor.numel(), " elements cannot be split evenly over ", size,
            " ranks");
    return {};
  }
  require(splits.size() == static_cast<std::size_t>(size), "expected ", size, " split sizes, found ",
          splits.size());
  // Splits count rows of the first dim.
  const std::int64_t rows = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  const std::int64_t found = tensor.dim() == 0 ? 1 : tensor.size(0);
  require(rows == found, "the split sizes add up to ", rows, " rows, but the tensor has ", found);
  const std::int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::vector<std::uint64_t> offsets(1, 0);
  for (const std::int64_t split : splits) {
    require(split >= 0, "a split size is ", split);
    offsets.push_back(offsets.back() + static_cast<std::uint64_t>(split * row));
  }
  return offsets;
}

Issue mode_of(bool async) { return async ? Issue::kAsync : Issue::kSync; }

}  // namespace

void check_reducible(const at::Tensor& tensor) {
  require(wire::reducible(element_of(tensor)), "tensors of ", wire::name(element_of(tensor)),
          " cannot be reduced (f32, f64, bf16, f16, i32 and i64 can)");
}

ShmBackend::ShmBackend(std::shared_ptr<wire::LocalGroup> group, std::string backend_name, double timeout_s)
    : c10d::Backend(group->membership().rank, group->membership().size),
      group_(std::move(group)),
      name_(std::move(backend_name)),
      timeout_s_(timeout_s) {}

ShmBackend::~ShmBackend() { group_->shutdown(); }

void ShmBackend::setTimeout(std::chrono::milliseconds timeout) { timeout_s_ = Seconds(timeout).count(); }

template <class OperationOptions>
ShmBackend::WorkHandle ShmBackend::issue(Call call, const OperationOptions& options, c10d::OpType type,
                                         Tensors outputs, Tensors held) {
  const bool unset = options.timeout == c10d::kUnsetTimeout;
  const double timeout_s = unset ? timeout_s_ : Seconds(options.timeout).count();
  std::shared_ptr<void> keep;
  if (options.asyncOp) keep = std::make_shared<Tensors>(std::move(held));
  auto operation = group_->issue(std::move(call), mode_of(options.asyncOp), timeout_s, std::move(keep));
  last_number_ = operation->number();
  return c10::make_intrusive<ShmWork>(group_, std::move(operation), type, std::move(outputs));
}

ShmBackend::WorkHandle ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors);
  check_reducible(tensor);
  Call call{.kind = CallKind::kAllReduce,
            .element = element_of(tensor),
            .reduction = reduction_of(options.reduceOp),
            .count = count_of(tensor),
            .input = bytes_of(tensor),
            .output = bytes_at(tensor)};
  return issue(std::move(call), options, c10d::OpType::ALLREDUCE, tensors, tensors);
}

ShmBackend::WorkHandle ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors);
  Call call{.kind = CallKind::kBroadcast,
            .element = element_of(tensor),
            .root = static_cast<int>(options.rootRank),
            .count = count_of(tensor),
            .input = bytes_of(tensor),
            .output = bytes_at(tensor)};
  return issue(std::move(call), options, c10d::OpType::BROADCAST, tensors, tensors);
}

ShmBackend::WorkHandle ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors);
  check_reducible(tensor);
  Call call{.kind = CallKind::kReduce,
            .element = element_of(tensor),
            .reduction = reduction_of(options.reduceOp),
            .root = static_cast<int>(options.rootRank),
            .count = count_of(tensor),
            .input = bytes_of(tensor),
            .output = bytes_at(tensor)};
  return issue(std::move(call), options, c10d::OpType::REDUCE, tensors, tensors);
}

ShmBackend::WorkHandle ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only(inputs);
  const Tensors& parts = one_per_rank(outputs, input, size_);
  Call call{.kind = CallKind::kAllGather,
            .element = element_of(input),
            .count = count_of(input),
            .input = bytes_of(input)};
  for (const at::Tensor& part : parts) call.output_parts.push_back(bytes_at(part));
  Tensors held(parts);
  held.push_back(input);
  return issue(std::move(call), options, c10d::OpType::ALLGATHER, parts, std::move(held));
}

ShmBackend::WorkHandle ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& options) {
  check_whole(output, input, size_);
  Call call{.kind = CallKind::kAllGather,
            .element = element_of(input),
            .count = count_of(input),
            .input = bytes_of(input),
            .output = bytes_at(output)};
  return issue(std::move(call), options, c10d::OpType::_ALLGATHER_BASE, {output}, {output, input});
}

ShmBackend::WorkHandle ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only(outputs);
  check_reducible(output);
  const Tensors& parts = one_per_rank(inputs, output, size_);
  Call call{.kind = CallKind::kReduceScatter,
            .element = element_of(output),
            .reduction = reduction_of(options.reduceOp),
            .count = count_of(output),
            .output = bytes_at(output)};
  for (const at::Tensor& part : parts) call.input_parts.push_back(bytes_of(part));
  Tensors held(parts);
  held.push_back(output);
  return issue(std::move(call), options, c10d::OpType::REDUCE_SCATTER, outputs, std::move(held));
}

ShmBackend::WorkHandle ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::ReduceScatterOptions& options) {
  check_whole(input, output, size_);
  check_reducible(output);
  Call call{.kind = CallKind::kReduceScatter,
            .element = element_of(output),
            .reduction = reduction_of(options.reduceOp),
            .count = count_of(output),
            .input = bytes_of(input),
            .output = bytes_at(output)};
  return issue(std::move(call), options, c10d::OpType::_REDUCE_SCATTER_BASE, {output}, {output, input});
}

ShmBackend::WorkHandle ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs);
  Call call{.kind = CallKind::kGather,
            .element = element_of(input),
            .root = static_cast<int>(options.rootRank),
            .count = count_of(input),
            .input = bytes_of(input)};
  Tensors parts;
  if (options.rootRank == rank_) parts = one_per_rank(outputs, input, size_);
  for (const at::Tensor& part : parts) call.output_parts.push_back(bytes_at(part));
  Tensors held(parts);
  held.push_back(input);
  return issue(std::move(call), options, c10d::OpType::GATHER, std::move(parts), std::move(held));
}

ShmBackend::WorkHandle ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs);
  Call call{.kind = CallKind::kScatter,
            .element = element_of(output),
            .root = static_cast<int>(options.rootRank),
            .count = count_of(output),
            .output = bytes_at(output)};
  Tensors held;
  if (options.rootRank == rank_) held = one_per_rank(inputs, output, size_);
  for (const at::Tensor& part : held) call.input_parts.push_back(bytes_of(part));
  held.push_back(output);
  return issue(std::move(call), options, c10d::OpType::SCATTER, outputs, std::move(held));
}

ShmBackend::WorkHandle ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<std::int64_t>& output_splits,
                                                 std::vector<std::int64_t>& input_splits,
                                                 const c10d::AllToAllOptions& options) {
  check(output);
  check(input);
  require(output.scalar_type() == input.scalar_type(), "all_to_all from ", at::toString(input.scalar_type()),
          " to ", at::toString(output.scalar_type()));
  Call call{.kind = CallKind::kAllToAll,
            .element = element_of(input),
            .count = count_of(input) / static_cast<std::uint64_t>(size_),
            .input = bytes_of(input),
            .output = bytes_at(output)};
  call.input_offsets = offsets_of(input_splits, input, size_);
  call.output_offsets = offsets_of(output_splits, output, size_);
  if (call.output_offsets.empty() && output.numel() != input.numel())
    throw InvalidArgument(text("all_to_all without split sizes: the input has ", input.numel(),
                               " elements, the output ", output.numel()));
  return issue(std::move(call), options, c10d::OpType::ALLTOALL_BASE, {output}, {output, input});
}

ShmBackend::WorkHandle ShmBackend::barrier(const c10d::BarrierOptions& options) {
  return issue(Call{.kind = CallKind::kBarrier}, options, c10d::OpType::BARRIER, {}, {});
}

ShmBackend::WorkHandle ShmBackend::issue_message(Tensors& tensors, Transfer::Direction direction, int peer,
                                                 int tag, c10d::OpType type) {
  const at::Tensor& tensor = only(tensors);
  require(peer >= 0 && peer < size_ && peer != rank_, "rank ", peer, " is no peer of rank ", rank_,
          " in a group of ", size_);
  const Transfer message{direction, peer, element_of(tensor), count_of(tensor), tag, bytes_at(tensor)};
  auto operation = group_->issue(message, Issue::kAsync, timeout_s_, std::make_shared<Tensors>(tensors));
  return c10::make_intrusive<ShmWork>(group_, std::move(operation), type, tensors);
}

ShmBackend::WorkHandle ShmBackend::send(Tensors& tensors, int destination, int tag) {
  return issue_message(tensors, Transfer::Direction::kSend, destination, tag, c10d::OpType::SEND);
}

ShmBackend::WorkHandle ShmBackend::recv(Tensors& tensors, int source, int tag) {
  return issue_message(tensors, Transfer::Direction::kReceive, source, tag, c10d::OpType::RECV);
}

at::Tensor ShmBackend::allocateTensor(long size, at::TensorOptions options) {
  const std::shared_ptr<wire::SharedArena> arena = group_->arena();
  if (!arena) return at::empty({size}, options);
  const auto bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  std::byte* block = arena->allocate(bytes);
  return at::from_blob(
      block, {size}, [arena, block](void*) { arena->free(block); }, options);
}

bool ShmBackend::supportsTensorAlloc(c10::DeviceIndex /*device*/) { return group_->arena() != nullptr; }

void ShmBackend::abort() {
  const wire::Membership& members = group_->membership();
  group_->abort(text("group ", members.group_name, " was aborted on rank ", members.rank_name(members.rank)));
}

void ShmBackend::shutdown() { group_->shutdown(); }

}  // namespace trireme::comm
