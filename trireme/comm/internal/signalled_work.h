#pragma once
// A c10d::Work that the executor of the operation ends, once: with success, or with the reason of the
// failure. Thread-safe. Waiting honours the given timeout and leaves the operation running when it expires.

#include <atomic>
#include <functional>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "trireme/comm/internal/timed_work.h"

namespace trireme::comm {

class SignalledWork : public c10d::Work, public TimedWork {
 public:
  SignalledWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs);

  /// The first call counts; null is success.
  void signal(std::exception_ptr failure);
  bool ended() const;
  double ended_s() const override { return ended_s_.load(std::memory_order_relaxed); }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return outputs_; }

 private:
  std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::once_flag once_;
  std::atomic<double> ended_s_{0};
};

/// The works of a backend that have not ended, so that an abort can end them all.
class PendingWorks {
 public:
  /// Ends the work at once if the backend was aborted before.
  void add(const c10::intrusive_ptr<SignalledWork>& work);
  void abort(const std::string& reason);
  bool aborted() const;

 private:
  mutable std::mutex mutex_;
  std::string abort_reason_;
  std::vector<c10::weak_intrusive_ptr<SignalledWork>> works_;
};

}  // namespace trireme::comm
