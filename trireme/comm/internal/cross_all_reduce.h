#pragma once
// Collectives between the ranks of a group that are on different hosts, over connections of their own. An
// all-reduce goes by the list of transfers that is the fastest for its size (topology/all_reduce_choice.h); a
// reduce-scatter and an all-gather are one step each, or go by sites where hosts name them. Sums, minima,
// maxima and products of contiguous CPU tensors of f32, f64, bf16, f16, i32 and i64; gloo runs the rest. One
// operation at a time, in the same order on all ranks; abort() from any thread.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "trireme/comm/internal/backend_table.h"
#include "trireme/topology/exchange.h"

namespace trireme::comm {

class CrossAllReduce {
 public:
  /// Collective over the ranks of `request`, which `gloo` connects, too, and all others of `group` that have
  /// counterparts on its other hosts. Null where `request.all_reduce` is "gloo". Throws CommError.
  static std::unique_ptr<CrossAllReduce> make(const BackendRequest& group, const BackendRequest& request,
                                              c10d::Backend& gloo);

  /// False where gloo has to do it: the same on all ranks. An average is not carried.
  bool all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, std::chrono::milliseconds timeout);
  /// `parts`: one like `sum` of each rank; added up in rank order, inside sites first. As above.
  bool reduce_scatter(const at::Tensor& sum, const at::Tensor& parts, const c10d::ReduceOp& op,
                      std::chrono::milliseconds timeout);
  /// `parts`: one of each rank, of any dtype; this rank's part is filled in. As above.
  bool all_gather(const at::Tensor& parts, std::chrono::milliseconds timeout);
  void abort() { exchange_.abort(); }

 private:
  CrossAllReduce(const wire::Socket& listening, const topology::Membership& membership,
                 const Deadline& deadline)
      : exchange_(listening, membership, deadline) {}

  topology::Exchange exchange_;
  AllReduceBook::Choice choice_;
};

}  // namespace trireme::comm
