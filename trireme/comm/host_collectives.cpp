#include "trireme/comm/internal/host_collectives.h"

namespace trireme::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

// Below this the three steps of the parts cost more than the leader's way.
constexpr std::int64_t kLeastNumelForParts = 4096;

/// Of a call that the caller waits for at once, on its own thread.
template <class Options>
Options waited_for() {
  Options options;
  options.asyncOp = false;
  return options;
}

bool is_average(const c10d::ReduceOp& op) { return op == c10d::ReduceOp::AVG; }

/// What is reduced in steps: an average is divided at the end.
c10d::ReduceOp step_of(const c10d::ReduceOp& op) {
  return is_average(op) ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
}

}  // namespace

HostCollectives::HostCollectives(HostLayout layout, HostLevels levels, std::chrono::milliseconds timeout)
    : layout_(std::move(layout)), levels_(std::move(levels)), timeout_(timeout) {}

void HostCollectives::all_reduce(at::Tensor tensor, const c10d::ReduceOp& op) const {
  reduce_everywhere(tensor.view({-1}), step_of(op));
  if (is_average(op)) tensor.div_(num_ranks());
}

void HostCollectives::reduce_everywhere(const at::Tensor& flat, const c10d::ReduceOp& op) const {
  const auto places = static_cast<std::int64_t>(layout_.members.size());
  const std::int64_t rest = layout_.even && places > 1 && flat.numel() >= kLeastNumelForParts
                                ? flat.numel() % places
                                : flat.numel();
  if (rest < flat.numel()) reduce_by_parts(flat.narrow(0, 0, flat.numel() - rest), op, places);
  if (rest > 0 || flat.numel() == 0) reduce_by_leaders(flat.narrow(0, flat.numel() - rest, rest), op);
}

void HostCollectives::reduce_by_parts(at::Tensor whole, const c10d::ReduceOp& op, std::int64_t places) const {
  const std::int64_t numel = whole.numel() / places;
  at::Tensor part = whole.narrow(0, layout_.place * numel, numel).clone();
  auto options = waited_for<c10d::ReduceScatterOptions>();
  options.reduceOp = op;
  finish(levels_.inner->_reduce_scatter_base(part, whole, options));
  reduce_across(part, op);
  finish(levels_.inner->_allgather_base(whole, part, waited_for<c10d::AllgatherOptions>()));
}

void HostCollectives::reduce_by_leaders(at::Tensor tensor, const c10d::ReduceOp& op) const {
  Tensors tensors{tensor};
  auto options = waited_for<c10d::ReduceOptions>();
  options.reduceOp = op;
  if (levels_.inner) finish(levels_.inner->reduce(tensors, options));
  if (leads()) reduce_across(tensor, op);
  if (levels_.inner) finish(levels_.inner->broadcast(tensors, waited_for<c10d::BroadcastOptions>()));
}

void HostCollectives::reduce_across(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
  if (!levels_.cross) return;
  Tensors tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  finish(levels_.cross->allreduce(tensors, options));
}

void HostCollectives::broadcast(const at::Tensor& tensor, int root) const {
  Tensors tensors{tensor};
  const int root_host = layout_.host_of[static_cast<std::size_t>(root)];
  const bool here = root_host == layout_.host;
  auto options = waited_for<c10d::BroadcastOptions>();
  if (here && levels_.inner) {
    options.rootRank = layout_.place_of(root);
    finish(levels_.inner->broadcast(tensors, options));
  }
  if (leads() && levels_.cross) {
    options.rootRank = root_host;
    finish(levels_.cross->broadcast(tensors, options));
  }
  if (!here && levels_.inner) {
    options.rootRank = 0;
    finish(levels_.inner->broadcast(tensors, options));
  }
}

void HostCollectives::barrier() const {
  if (levels_.inner) finish(levels_.inner->barrier());
  if (leads() && levels_.cross) finish(levels_.cross->barrier());
  if (levels_.inner) finish(levels_.inner->barrier());
}

}  // namespace trireme::comm
