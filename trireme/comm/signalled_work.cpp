#include "trireme/comm/internal/signalled_work.h"

#include "trireme/base/clock.h"
#include "trireme/wire/group_error.h"

namespace trireme::comm {
namespace {

wire::GroupError given_up(const std::string& reason) {
  return {wire::GroupError::Kind::kGivenUp, /*group=*/"", reason};
}

}  // namespace

SignalledWork::SignalledWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
    : Work(rank, type),
      outputs_(std::move(outputs)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

void SignalledWork::signal(std::exception_ptr failure) {
  std::call_once(once_, [&] {
    ended_s_.store(now_s(), std::memory_order_relaxed);
    if (failure) {
      future_->setError(failure);
    } else {
      future_->markCompleted(c10::IValue(outputs_));
    }
    finish(failure);
  });
}

bool SignalledWork::ended() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

void PendingWorks::add(const c10::intrusive_ptr<SignalledWork>& work) {
  std::unique_lock lock(mutex_);
  if (!abort_reason_.empty()) {
    const auto failure = std::make_exception_ptr(given_up(abort_reason_));
    lock.unlock();
    work->signal(failure);
    return;
  }
  std::erase_if(works_, [](const auto& each) {
    const auto alive = each.lock();
    return !alive || alive->ended();
  });
  works_.emplace_back(work);
}

void PendingWorks::abort(const std::string& reason) {
  std::vector<c10::weak_intrusive_ptr<SignalledWork>> works;
  {
    const std::lock_guard lock(mutex_);
    if (abort_reason_.empty()) abort_reason_ = reason;
    works.swap(works_);
  }
  for (const auto& each : works) {
    if (const auto work = each.lock()) work->signal(std::make_exception_ptr(given_up(reason)));
  }
}

bool PendingWorks::aborted() const {
  const std::lock_guard lock(mutex_);
  return !abort_reason_.empty();
}

}  // namespace trireme::comm
