#pragma once
// The collectives of a group over several hosts: shared memory inside each host, and between hosts lists of
// transfers (all-reduces, reduce-scatters, all-gathers) and gloo (the rest). So between two hosts every byte
// is sent once each way instead of once per rank. Where every host has the same number of ranks, each rank
// exchanges with those at its place on the other hosts; elsewhere the first rank of each host does so for all
// of them. Every call waits for its end; one at a time, in the same order on all ranks.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "trireme/comm/internal/cross_all_reduce.h"
#include "trireme/comm/internal/host_layout.h"

namespace trireme::comm {

using BackendHandle = c10::intrusive_ptr<c10d::Backend>;

/// The groups that a group over several hosts is made of.
struct HostLevels {
  BackendHandle inner;     ///< the ranks of this host; empty when there is one
  BackendHandle messages;  ///< the same ranks, for send and recv, which come from another thread
  BackendHandle cross;     ///< this rank's counterparts on the other hosts; empty when it has none
  BackendHandle flat;      ///< all ranks
  std::shared_ptr<CrossAllReduce> cross_all_reduce = {};  ///< of `cross`; null: gloo's
};

class HostCollectives {
 public:
  HostCollectives(HostLayout layout, HostLevels levels, std::chrono::milliseconds timeout);

  void all_reduce(at::Tensor tensor, const c10d::ReduceOp& op) const;
  void broadcast(const at::Tensor& tensor, int root) const;
  void barrier() const;
  /// `input` holds a part like `output` for each rank. All of them are contiguous.
  void reduce_scatter(at::Tensor output, const at::Tensor& input, const c10d::ReduceOp& op) const;
  /// `output` has room for the `input` of each rank.
  void all_gather(at::Tensor output, const at::Tensor& input) const;

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;

  bool leads() const { return layout_.place == 0; }
  void finish(const Work& work) const { work->wait(timeout_); }
  void reduce_everywhere(const at::Tensor& flat, const c10d::ReduceOp& op) const;
  void reduce_by_parts(at::Tensor whole, const c10d::ReduceOp& op, std::int64_t places) const;
  void reduce_by_leaders(at::Tensor tensor, const c10d::ReduceOp& op) const;
  void reduce_across(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  void scatter_across(at::Tensor sum, at::Tensor parts, const c10d::ReduceOp& op) const;
  void gather_across(at::Tensor parts) const;
  void scatter_by_parts(at::Tensor output, const at::Tensor& by_host, const c10d::ReduceOp& op) const;
  void scatter_by_leaders(at::Tensor output, const at::Tensor& by_host, const c10d::ReduceOp& op) const;
  at::Tensor exchange_sums(const at::Tensor& by_host, const c10d::ReduceOp& op) const;
  void gather_by_parts(at::Tensor by_host, const at::Tensor& input) const;
  void gather_by_leaders(at::Tensor by_host, const at::Tensor& input) const;

  std::int64_t num_ranks() const { return static_cast<std::int64_t>(layout_.everybody.size()); }
  at::Tensor block_of(const at::Tensor& by_host, std::size_t host) const;
  at::Tensor in_host_order(const at::Tensor& by_rank) const;

  const HostLayout layout_;
  const HostLevels levels_;
  const std::chrono::milliseconds timeout_;
  at::Tensor order_;  ///< the ranks, host by host; undefined where that is their order
};

}  // namespace trireme::comm
