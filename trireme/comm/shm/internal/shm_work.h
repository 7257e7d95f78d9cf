#pragma once
// c10d's handle of one operation of a wire::LocalGroup. Thread-safe.

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "trireme/comm/internal/timed_work.h"
#include "trireme/wire/local_group.h"

namespace trireme::comm {

class ShmWork : public c10d::Work, public TimedWork {
 public:
  ShmWork(std::shared_ptr<wire::LocalGroup> group, std::shared_ptr<wire::Operation> operation,
          c10d::OpType type, std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  /// Throws CommError. A timeout that is not kNoTimeout fails the group when it passes.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override;
  double ended_s() const override { return operation_->done_s(); }

 private:
  const std::shared_ptr<wire::LocalGroup> group_;
  const std::shared_ptr<wire::Operation> operation_;
  const std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace trireme::comm
