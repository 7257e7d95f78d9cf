#include "trireme/comm/shm/internal/shm_work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "trireme/base/text.h"

namespace trireme::comm {

ShmWork::ShmWork(std::shared_ptr<wire::LocalGroup> group, std::shared_ptr<wire::Operation> operation,
                 c10d::OpType type, std::vector<at::Tensor> outputs)
    : c10d::Work(group->membership().rank, type),
      group_(std::move(group)),
      operation_(std::move(operation)),
      outputs_(std::move(outputs)) {}

bool ShmWork::isCompleted() { return group_->poll(*operation_); }

bool ShmWork::isSuccess() const { return operation_->done() && operation_->error() == nullptr; }

std::exception_ptr ShmWork::exception() const { return operation_->error(); }

std::vector<at::Tensor> ShmWork::result() { return outputs_; }

void ShmWork::synchronize() { wait(); }

bool ShmWork::wait(std::chrono::milliseconds timeout) {
  group_->wait(*operation_, timeout == kNoTimeout ? 0 : Seconds(timeout).count());
  return true;
}

void ShmWork::abort() {
  group_->abort(text("group ", group_->membership().group_name, " was aborted on rank ",
                     group_->membership().rank_name(group_->membership().rank)));
}

c10::intrusive_ptr<c10::ivalue::Future> ShmWork::getFuture() {
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  }
  group_->when_done(*operation_, [future = future_, operation = operation_, outputs = outputs_] {
    if (const std::exception_ptr error = operation->error())
      future->setError(error);
    else
      future->markCompleted(c10::IValue(outputs));
  });
  return future_;
}

std::uint64_t ShmWork::getSequencenumber() const { return operation_->number(); }

}  // namespace trireme::comm
