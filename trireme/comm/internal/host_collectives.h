#pragma once
// The collectives of a group over several hosts: shared memory inside each host, gloo between hosts, so that
// between two hosts every byte travels once each way instead of once per rank. Where every host has the same
// number of ranks each rank talks to those at its place on the other hosts; elsewhere the first rank of each
// host stands for it. Every call waits for its end; one at a time, in the same order on all ranks.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "trireme/comm/internal/host_layout.h"

namespace trireme::comm {

using BackendHandle = c10::intrusive_ptr<c10d::Backend>;

/// The groups that a group over several hosts is made of.
struct HostLevels {
  BackendHandle inner;     ///< the ranks of this host; empty when there is one
  BackendHandle messages;  ///< the same ranks, for send and recv, which come from another thread
  BackendHandle cross;     ///< this rank's counterparts on the other hosts; empty when it has none
  BackendHandle flat;      ///< all ranks
};

class HostCollectives {
 public:
  HostCollectives(HostLayout layout, HostLevels levels, std::chrono::milliseconds timeout);

  void all_reduce(at::Tensor tensor, const c10d::ReduceOp& op) const;
  void broadcast(const at::Tensor& tensor, int root) const;
  void barrier() const;

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;

  bool leads() const { return layout_.place == 0; }
  void finish(const Work& work) const { work->wait(timeout_); }
  void reduce_everywhere(const at::Tensor& flat, const c10d::ReduceOp& op) const;
  void reduce_by_parts(at::Tensor whole, const c10d::ReduceOp& op, std::int64_t places) const;
  void reduce_by_leaders(at::Tensor tensor, const c10d::ReduceOp& op) const;
  void reduce_across(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  std::int64_t num_ranks() const { return static_cast<std::int64_t>(layout_.everybody.size()); }

  const HostLayout layout_;
  const HostLevels levels_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace trireme::comm
