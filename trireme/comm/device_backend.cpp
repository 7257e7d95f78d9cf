#include "trireme/comm/internal/device_backend.h"

#include <ATen/ops/empty.h>

#include <mutex>
#include <utility>
#include <vector>

#include "trireme/comm/internal/timed_work.h"

namespace trireme::comm {
namespace {

using WorkHandle = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using BackendHandle = c10::intrusive_ptr<c10d::Backend>;

/// A device tensor and its host copy, on which the host backend works.
struct Copy {
  at::Tensor there;
  at::Tensor here;
};

/// An operation on host copies. The first thread that waits copies the results to the device.
class StagedWork final : public c10d::Work, public TimedWork {
 public:
  StagedWork(int rank, WorkHandle on_copies, std::vector<Copy> results, Tensors held)
      : c10d::Work(rank, on_copies->retrieveOpType()),
        on_copies_(std::move(on_copies)),
        results_(std::move(results)),
        held_(std::move(held)) {}

  bool isCompleted() override { return on_copies_->isCompleted(); }
  bool isSuccess() const override { return on_copies_->isSuccess(); }
  std::exception_ptr exception() const override { return on_copies_->exception(); }
  void synchronize() override { wait(); }
  void abort() override { on_copies_->abort(); }
  double ended_s() const override { return ended_s_of(*on_copies_, 0); }

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    const bool waited = on_copies_->wait(timeout);
    const std::lock_guard lock(mutex_);
    for (const Copy& result : std::exchange(results_, {})) at::Tensor(result.there).copy_(result.here);
    return waited;
  }

 private:
  const WorkHandle on_copies_;
  std::vector<Copy> results_;
  const Tensors held_;
};

/// Makes the host copies for one operation.
class Staging {
 public:
  explicit Staging(c10d::Backend& host) : host_(host) {}

  /// An input of the operation. Waits until the device has computed it.
  at::Tensor input(const at::Tensor& tensor) {
    const at::Tensor here = room_for(tensor);
    here.copy_(tensor);
    held_.push_back(here);
    return here;
  }
  /// An output of the operation.
  at::Tensor output(const at::Tensor& tensor) {
    return results_.emplace_back(Copy{tensor, room_for(tensor)}).here;
  }
  /// Input and output.
  at::Tensor in_place(const at::Tensor& tensor) {
    const at::Tensor here = input(tensor);
    results_.push_back({tensor, here});
    return here;
  }

  WorkHandle staged(WorkHandle on_copies) {
    return c10::make_intrusive<StagedWork>(host_.getRank(), std::move(on_copies), std::move(results_),
                                           std::move(held_));
  }

 private:
  at::Tensor room_for(const at::Tensor& tensor) const {
    const auto options = at::TensorOptions(tensor.scalar_type());
    if (!host_.supportsTensorAlloc(0)) return at::empty(tensor.sizes(), options);
    return host_.allocateTensor(tensor.numel(), options).view(tensor.sizes());
  }

  c10d::Backend& host_;
  std::vector<Copy> results_;
  Tensors held_;
};

class DeviceBackend final : public c10d::Backend {
 public:
  DeviceBackend(BackendHandle host, BackendHandle device)
      : Backend(host->getRank(), host->getSize()), host_(std::move(host)), device_(std::move(device)) {}

  const std::string getBackendName() const override { return (device_ ? device_ : host_)->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    host_->setTimeout(timeout);
    if (device_) device_->setTimeout(timeout);
  }

  WorkHandle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (const auto way = way_of(tensors.at(0))) return way->allreduce(tensors, options);
    Staging staging(*host_);
    Tensors copies = {staging.in_place(tensors.at(0))};
    return staging.staged(host_->allreduce(copies, options));
  }

  WorkHandle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    if (const auto way = way_of(tensors.at(0))) return way->broadcast(tensors, options);
    Staging staging(*host_);
    const bool is_root = options.rootRank == getRank();
    Tensors copies = {is_root ? staging.input(tensors.at(0)) : staging.output(tensors.at(0))};
    return staging.staged(host_->broadcast(copies, options));
  }

  WorkHandle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    if (const auto way = way_of(tensors.at(0))) return way->reduce(tensors, options);
    Staging staging(*host_);
    const bool is_root = options.rootRank == getRank();
    Tensors copies = {is_root ? staging.in_place(tensors.at(0)) : staging.input(tensors.at(0))};
    return staging.staged(host_->reduce(copies, options));
  }

  WorkHandle _allgather_base(at::Tensor& output, at::Tensor& input,
                             const c10d::AllgatherOptions& options) override {
    if (const auto way = way_of(output)) return way->_allgather_base(output, input, options);
    Staging staging(*host_);
    at::Tensor to = staging.output(output), from = staging.input(input);
    return staging.staged(host_->_allgather_base(to, from, options));
  }

  WorkHandle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options) override {
    if (const auto way = way_of(output)) return way->_reduce_scatter_base(output, input, options);
    Staging staging(*host_);
    at::Tensor to = staging.output(output), from = staging.input(input);
    return staging.staged(host_->_reduce_scatter_base(to, from, options));
  }

  WorkHandle gather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::GatherOptions& options) override {
    if (const auto way = way_of(inputs.at(0))) return way->gather(outputs, inputs, options);
    Staging staging(*host_);
    Tensors from = {staging.input(inputs.at(0))};
    std::vector<Tensors> to;
    for (const Tensors& list : outputs) {
      Tensors& copies = to.emplace_back();
      for (const at::Tensor& output : list) copies.push_back(staging.output(output));
    }
    return staging.staged(host_->gather(to, from, options));
  }

  WorkHandle scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                     const c10d::ScatterOptions& options) override {
    if (const auto way = way_of(outputs.at(0))) return way->scatter(outputs, inputs, options);
    Staging staging(*host_);
    Tensors to = {staging.output(outputs.at(0))};
    std::vector<Tensors> from;
    for (const Tensors& list : inputs) {
      Tensors& copies = from.emplace_back();
      for (const at::Tensor& input : list) copies.push_back(staging.input(input));
    }
    return staging.staged(host_->scatter(to, from, options));
  }

  WorkHandle alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_parts,
                           std::vector<std::int64_t>& input_parts,
                           const c10d::AllToAllOptions& options) override {
    if (const auto way = way_of(output))
      return way->alltoall_base(output, input, output_parts, input_parts, options);
    Staging staging(*host_);
    at::Tensor to = staging.output(output), from = staging.input(input);
    return staging.staged(host_->alltoall_base(to, from, output_parts, input_parts, options));
  }

  WorkHandle send(Tensors& tensors, int destination, int tag) override {
    if (const auto way = way_of(tensors.at(0))) return way->send(tensors, destination, tag);
    Staging staging(*host_);
    Tensors copies = {staging.input(tensors.at(0))};
    return staging.staged(host_->send(copies, destination, tag));
  }

  WorkHandle recv(Tensors& tensors, int source, int tag) override {
    if (const auto way = way_of(tensors.at(0))) return way->recv(tensors, source, tag);
    Staging staging(*host_);
    Tensors copies = {staging.output(tensors.at(0))};
    return staging.staged(host_->recv(copies, source, tag));
  }

  WorkHandle barrier(const c10d::BarrierOptions& options) override { return host_->barrier(options); }

  bool supportsTensorAlloc(c10::DeviceIndex index) override { return host_->supportsTensorAlloc(index); }
  at::Tensor allocateTensor(long numel, at::TensorOptions options) override {
    return host_->allocateTensor(numel, options);
  }

  void abort() override {
    host_->abort();
    if (device_) device_->abort();
  }
  void shutdown() override {
    if (device_) device_->shutdown();
    host_->shutdown();
  }

 private:
  /// The backend that can communicate the tensor directly; null if the tensor must be copied.
  BackendHandle way_of(const at::Tensor& tensor) const { return tensor.is_cpu() ? host_ : device_; }

  const BackendHandle host_, device_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_device_backend(c10::intrusive_ptr<c10d::Backend> host,
                                                      c10::intrusive_ptr<c10d::Backend> device) {
  return c10::make_intrusive<DeviceBackend>(std::move(host), std::move(device));
}

}  // namespace trireme::comm
