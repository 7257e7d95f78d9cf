#include "trireme/comm/internal/host_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "trireme/comm/internal/reduce_rows.h"

namespace trireme::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

// Below this, the three steps by parts cost more than the way over leaders.
constexpr std::int64_t kMinNumelForParts = 4096;

/// Options of a synchronous call, which runs on the caller's thread.
template <class Options>
Options waited_for() {
  Options options;
  options.asyncOp = false;
  return options;
}

/// The ranks, host by host; undefined if that is the order of rank numbers.
at::Tensor host_order_of(const HostLayout& layout) {
  std::vector<std::int64_t> order;
  for (const auto& ranks : layout.ranks_of_host) order.insert(order.end(), ranks.begin(), ranks.end());
  return std::is_sorted(order.begin(), order.end()) ? at::Tensor() : at::tensor(order);
}

bool is_average(const c10d::ReduceOp& op) { return op == c10d::ReduceOp::AVG; }

/// The reduction of each step: an average is a sum that is divided at the end.
c10d::ReduceOp step_of(const c10d::ReduceOp& op) {
  return is_average(op) ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
}

}  // namespace

HostCollectives::HostCollectives(HostLayout layout, HostLevels levels, std::chrono::milliseconds timeout)
    : layout_(std::move(layout)),
      levels_(std::move(levels)),
      timeout_(timeout),
      order_(host_order_of(layout_)) {}

// ---- all-reduce ----

void HostCollectives::all_reduce(at::Tensor tensor, const c10d::ReduceOp& op) const {
  reduce_everywhere(tensor.view({-1}), step_of(op));
  if (is_average(op)) tensor.div_(num_ranks());
}

void HostCollectives::reduce_everywhere(const at::Tensor& flat, const c10d::ReduceOp& op) const {
  const auto places = static_cast<std::int64_t>(layout_.members.size());
  const std::int64_t rest =
      layout_.even && places > 1 && flat.numel() >= kMinNumelForParts ? flat.numel() % places : flat.numel();
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
  if (levels_.cross_all_reduce && levels_.cross_all_reduce->all_reduce(tensor, op, timeout_)) return;
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

// ---- order of hosts ----

/// The parts of one host's ranks in `by_host`, which has a part per rank in the order of hosts.
at::Tensor HostCollectives::block_of(const at::Tensor& by_host, std::size_t host) const {
  const std::int64_t numel = by_host.numel() / num_ranks();
  std::int64_t before = 0;
  for (std::size_t h = 0; h < host; ++h) before += static_cast<std::int64_t>(layout_.ranks_of_host[h].size());
  const auto ranks = static_cast<std::int64_t>(layout_.ranks_of_host[host].size());
  return by_host.narrow(0, before * numel, ranks * numel);
}

/// Shares memory with `by_rank` if ranks are numbered host by host.
at::Tensor HostCollectives::in_host_order(const at::Tensor& by_rank) const {
  if (!order_.defined()) return by_rank.view({-1});
  return by_rank.view({num_ranks(), -1}).index_select(0, order_).view({-1});
}

// ---- reduce-scatter ----

void HostCollectives::reduce_scatter(at::Tensor output, const at::Tensor& input,
                                     const c10d::ReduceOp& op) const {
  if (output.numel() == 0) return barrier();
  const at::Tensor by_host = in_host_order(input);
  const at::Tensor flat = output.view({-1});
  if (layout_.even) {
    scatter_by_parts(flat, by_host, step_of(op));
  } else {
    scatter_by_leaders(flat, by_host, step_of(op));
  }
  if (is_average(op)) output.div_(num_ranks());
}

/// `parts` has one part for each host.
void HostCollectives::scatter_across(at::Tensor sum, at::Tensor parts, const c10d::ReduceOp& op) const {
  if (levels_.cross_all_reduce && levels_.cross_all_reduce->reduce_scatter(sum, parts, op, timeout_)) return;
  auto options = waited_for<c10d::ReduceScatterOptions>();
  options.reduceOp = op;
  finish(levels_.cross->_reduce_scatter_base(sum, parts, options));
}

/// Inside the host, each rank reduces the parts for its place on every host. Then ranks of the same place
/// exchange their sums.
void HostCollectives::scatter_by_parts(at::Tensor output, const at::Tensor& by_host,
                                       const c10d::ReduceOp& op) const {
  auto options = waited_for<c10d::ReduceScatterOptions>();
  options.reduceOp = op;
  const std::size_t hosts = layout_.ranks_of_host.size();
  at::Tensor sums = levels_.inner ? output : by_host;
  if (levels_.inner && levels_.cross)
    sums = at::empty({static_cast<std::int64_t>(hosts) * output.numel()}, output.options());
  for (std::size_t host = 0; levels_.inner && host < hosts; ++host) {
    at::Tensor sum = sums.narrow(0, static_cast<std::int64_t>(host) * output.numel(), output.numel());
    at::Tensor block = block_of(by_host, host);
    finish(levels_.inner->_reduce_scatter_base(sum, block, options));
  }
  if (levels_.cross) scatter_across(output, sums, op);
}

void HostCollectives::scatter_by_leaders(at::Tensor output, const at::Tensor& by_host,
                                         const c10d::ReduceOp& op) const {
  auto options = waited_for<c10d::ReduceOptions>();
  options.reduceOp = op;
  // A reduction writes into the tensor of its root, and the input must not change.
  at::Tensor whole = leads() && levels_.inner ? by_host.clone() : by_host;
  Tensors wholes{whole};
  if (levels_.inner) finish(levels_.inner->reduce(wholes, options));
  const at::Tensor block = leads() ? exchange_sums(whole, op) : at::Tensor();
  if (!levels_.inner) {
    output.copy_(block);
    return;
  }
  std::vector<Tensors> parts;
  if (leads()) parts.push_back(block.view({-1, output.numel()}).unbind());
  Tensors outputs{output};
  finish(levels_.inner->scatter(outputs, parts, waited_for<c10d::ScatterOptions>()));
}

/// Between leaders: the parts for the ranks of this host, summed over the hosts.
at::Tensor HostCollectives::exchange_sums(const at::Tensor& by_host, const c10d::ReduceOp& op) const {
  const auto hosts = static_cast<std::int64_t>(layout_.ranks_of_host.size());
  const std::int64_t mine = block_of(by_host, static_cast<std::size_t>(layout_.host)).numel();
  at::Tensor received = at::empty({hosts * mine}, by_host.options());
  std::vector<std::int64_t> numels_received(static_cast<std::size_t>(hosts), mine);
  std::vector<std::int64_t> numels_sent;
  for (std::size_t host = 0; host < layout_.ranks_of_host.size(); ++host)
    numels_sent.push_back(block_of(by_host, host).numel());
  at::Tensor sent = by_host;
  finish(levels_.cross->alltoall_base(received, sent, numels_received, numels_sent));
  at::Tensor sum = at::empty({mine}, by_host.options());
  reduce_rows(received.view({hosts, mine}), op, sum);
  return sum;
}

// ---- all-gather ----

void HostCollectives::all_gather(at::Tensor output, const at::Tensor& input) const {
  if (input.numel() == 0) return barrier();
  const at::Tensor by_host = order_.defined() ? at::empty_like(output).view({-1}) : output.view({-1});
  if (layout_.even) {
    gather_by_parts(by_host, input.view({-1}));
  } else {
    gather_by_leaders(by_host, input.view({-1}));
  }
  if (order_.defined()) {
    const std::int64_t numel = input.numel();
    output.view({-1, numel}).index_copy_(0, order_, by_host.view({-1, numel}));
  }
}

/// `parts` has one part for each host; this host's part is filled in.
void HostCollectives::gather_across(at::Tensor parts) const {
  if (levels_.cross_all_reduce && levels_.cross_all_reduce->all_gather(parts, timeout_)) return;
  const std::int64_t numel = parts.numel() / static_cast<std::int64_t>(layout_.ranks_of_host.size());
  at::Tensor mine = parts.narrow(0, layout_.host * numel, numel).clone();
  finish(levels_.cross->_allgather_base(parts, mine, waited_for<c10d::AllgatherOptions>()));
}

/// Each rank gets the parts of its counterparts. Then all ranks of the host gather from each other.
void HostCollectives::gather_by_parts(at::Tensor by_host, const at::Tensor& input) const {
  const auto hosts = static_cast<std::int64_t>(layout_.ranks_of_host.size());
  const bool passes_on = static_cast<bool>(levels_.inner);
  at::Tensor received =
      passes_on && levels_.cross ? at::empty({hosts * input.numel()}, input.options()) : by_host;
  const auto part_of = [&](std::int64_t host) {
    return received.narrow(0, host * input.numel(), input.numel());
  };
  if (levels_.cross) {
    part_of(layout_.host).copy_(input);
    gather_across(received);
  }
  for (std::int64_t host = 0; passes_on && host < hosts; ++host) {
    at::Tensor block = block_of(by_host, static_cast<std::size_t>(host));
    at::Tensor part = host == layout_.host ? input : part_of(host);
    finish(levels_.inner->_allgather_base(block, part, waited_for<c10d::AllgatherOptions>()));
  }
}

void HostCollectives::gather_by_leaders(at::Tensor by_host, const at::Tensor& input) const {
  at::Tensor here = block_of(by_host, static_cast<std::size_t>(layout_.host));
  if (levels_.inner) {
    std::vector<Tensors> parts;
    if (leads()) parts.push_back(here.view({-1, input.numel()}).unbind());
    Tensors inputs{input};
    finish(levels_.inner->gather(parts, inputs, waited_for<c10d::GatherOptions>()));
  } else {
    here.copy_(input);
  }
  std::vector<Work> crossing;
  for (std::size_t host = 0; leads() && host < layout_.ranks_of_host.size(); ++host) {
    Tensors block{block_of(by_host, host)};
    c10d::BroadcastOptions options;
    options.rootRank = static_cast<std::int64_t>(host);
    crossing.push_back(levels_.cross->broadcast(block, options));
  }
  for (const Work& work : crossing) finish(work);
  Tensors all{by_host};
  if (levels_.inner) finish(levels_.inner->broadcast(all, waited_for<c10d::BroadcastOptions>()));
}

}  // namespace trireme::comm
