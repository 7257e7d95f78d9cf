#pragma once
// Makes the tensors of ranks replicas of each other: the check that they can be, and the broadcast of values
// in flat tensors of the group's memory. Everything here is collective.

#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {

/// Checks that all ranks of the group hold the same parameters, buffers and options. Throws CommError, on
/// every rank, with the first difference and the advice; and InvalidArgument, on every rank of several, for a
/// complex parameter that requires a gradient.
void check_replicas(comm::Group& group, const Replica& replica, const DataParallelOptions& options,
                    const char* advice = "build the same module on every rank");

/// Without their names.
std::vector<at::Tensor> tensors_of(const optim::NamedTensors& named);

/// Tensors of one dtype and device that are broadcast as one flat tensor.
class Coalesced {
 public:
  Coalesced(const comm::Group& group, std::vector<at::Tensor> tensors);
  void start(comm::Group& group, int root);
  /// Waits, and copies the received values into the tensors of all ranks but the root.
  void finish(const comm::Group& group);
  /// Waits, and leaves the tensors as they are.
  void give_up();

 private:
  template <class Copy>
  void for_each_part(Copy&& copy);

  std::vector<at::Tensor> tensors_;
  at::Tensor flat_;
  comm::Pending pending_;
  int root_ = 0;
};

/// Packs of at most about `chunk_bytes`, each of one dtype and device.
std::vector<std::vector<at::Tensor>> packs_of(const std::vector<at::Tensor>& tensors,
                                              std::int64_t chunk_bytes);

/// Copies the tensors of `root` to all ranks, in flat chunks one after another.
void broadcast_tensors(comm::Group& group, const std::vector<at::Tensor>& tensors, int root);

}  // namespace trireme::parallel
