#pragma once
// The backends "shm" and "threads": c10d's interface over a wire::LocalGroup, for contiguous CPU tensors.
// Collectives are checked between ranks, deterministic (rank order), and in place without a copy for tensors
// of allocateTensor() (and for all tensors between threads). Tensors stay alive until their operation is
// done.

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "trireme/wire/local_group.h"

namespace trireme::comm {

/// Throws InvalidArgument for a tensor that shared memory cannot reduce.
void check_reducible(const at::Tensor& tensor);

class ShmBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkHandle = c10::intrusive_ptr<c10d::Work>;

  ShmBackend(std::shared_ptr<wire::LocalGroup> group, std::string backend_name, double timeout_s);
  ~ShmBackend() override;

  const std::string getBackendName() const override { return name_; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  WorkHandle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkHandle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkHandle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkHandle allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::AllgatherOptions& options) override;
  WorkHandle _allgather_base(at::Tensor& output, at::Tensor& input,
                             const c10d::AllgatherOptions& options) override;
  WorkHandle reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ReduceScatterOptions& options) override;
  WorkHandle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options) override;
  WorkHandle gather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::GatherOptions& options) override;
  WorkHandle scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                     const c10d::ScatterOptions& options) override;
  WorkHandle alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                           std::vector<std::int64_t>& input_splits,
                           const c10d::AllToAllOptions& options) override;
  WorkHandle send(Tensors& tensors, int destination, int tag) override;
  WorkHandle recv(Tensors& tensors, int source, int tag) override;
  WorkHandle barrier(const c10d::BarrierOptions& options) override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return last_number_; }

  /// A flat tensor in memory that all ranks can address; freed when its last view dies. Its content is
  /// undefined. Throws CommError with the size when there is no memory.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex device) override;

  /// Whether ranks are processes of their own; else they are threads of one.
  bool has_processes() const { return group_->arena() != nullptr; }

  void abort() override;
  void shutdown() override;

 private:
  template <class OperationOptions>
  WorkHandle issue(wire::Call call, const OperationOptions& options, c10d::OpType type, Tensors outputs,
                   Tensors held);
  WorkHandle issue_message(Tensors& tensors, wire::Transfer::Direction direction, int peer, int tag,
                           c10d::OpType type);

  const std::shared_ptr<wire::LocalGroup> group_;
  const std::string name_;
  double timeout_s_;
  std::uint64_t last_number_ = 0;
};

}  // namespace trireme::comm
