#pragma once
// A call of another worker, while it is served: FunctionRow::run gets it, and answers once, at any time, from
// any thread.

#include <atomic>
#include <memory>
#include <optional>

#include "trireme/rpc/agent_core.h"
#include "trireme/rpc/parcels.h"

namespace trireme::rpc {

class ServedCall {
 public:
  ServedCall(std::shared_ptr<AgentCore> core, const FunctionRow& function, WorkerId from, std::uint64_t call)
      : core_(std::move(core)), function_(function), from_(from), call_(call) {}

  AgentCore& core() const { return *core_; }
  const FunctionRow& function() const { return function_; }
  WorkerId from() const { return from_; }
  std::uint64_t call() const { return call_; }

  /// Throws InvalidArgument when they are not the function's arguments.
  template <class Arguments>
  Arguments read_arguments() {
    return read_parcel<Arguments>(*core_, from_, arguments, references,
                                  [this] { return text("the arguments of '", function_.name, "'"); });
  }
  /// Sends the result back. Of answer(), keep() and fail() one is called, once.
  template <class T>
  void answer(const T& value) const {
    core_->answer(*this, write_parcel(*core_, from_, &arguments.annex, value));
  }
  /// The result is to stay here, where the caller refers to it.
  bool stays() const { return result != nullptr; }
  void keep(AnyValue value) const {
    core_->value_of(result->id())->set(std::move(value));
    core_->answer(*this, {});
  }
  /// Sends the error back. Where the result stays, every use of it gets that error.
  void fail(const std::exception_ptr& error) const {
    if (stays()) core_->value_of(result->id())->fail(error);
    core_->answer_error(*this, error);
  }

  Parcel arguments = {};
  Handles references = {};                 ///< among the arguments
  std::shared_ptr<RefHandle> result = {};  ///< null: it goes back
  std::int64_t arrived_ns = 0;
  std::atomic<bool> cancelled = false;

 private:
  const std::shared_ptr<AgentCore> core_;
  const FunctionRow& function_;
  const WorkerId from_;
  const std::uint64_t call_;
};

}  // namespace trireme::rpc
