#pragma once
// A work on top of another one: wait() waits for it, and then calls a function once, which writes the
// results. done() of the operation may be true before. Errors of the work below are in its own terms, bytes
// or another operation: a description is appended to them.

#include <functional>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "trireme/comm/internal/group_state.h"
#include "trireme/comm/internal/timed_work.h"

namespace trireme::comm {

class FinishingWork final : public c10d::Work, public TimedWork {
 public:
  /// `finish` owns the buffers that the work below uses.
  FinishingWork(comm::Work below, std::function<std::string()> describe, std::function<void()> finish);

  bool isCompleted() override { return below_->isCompleted(); }
  bool isSuccess() const override { return below_->isSuccess(); }
  std::exception_ptr exception() const override { return below_->exception(); }
  void synchronize() override { wait(); }
  void abort() override { below_->abort(); }
  double ended_s() const override { return ended_s_of(*below_, 0); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

 private:
  bool wait_below(std::chrono::milliseconds timeout) const;

  const comm::Work below_;
  const std::function<std::string()> describe_;
  std::function<void()> finish_;  ///< null after it was called
};

}  // namespace trireme::comm
