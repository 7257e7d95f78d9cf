#pragma once
// The state of a Pending, and the template that issues every operation of a group.

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/internal/group_state.h"

namespace trireme::comm {

struct Pending::State {
  State(std::shared_ptr<Group::State> of_group, const Operation& issued, Work running, Tensors held)
      : group(std::move(of_group)), operation(issued), work(std::move(running)), tensors(std::move(held)) {}

  ~State() {
    if (work && !failed && !closed) group->keep_dropped(operation, std::move(work), std::move(tensors));
  }

  void wait() {
    const std::lock_guard lock(mutex);
    if (failed) group->throw_failure();
    if (!work) return;
    failed = true;
    {
      const Group::State::WaitScope scope(*group, operation);
      group->wait(operation, *work);
    }
    failed = false;
    work.reset();
    tensors.clear();
  }

  bool done() {
    if (group->failed()) return true;
    const std::unique_lock lock(mutex, std::try_to_lock);
    if (!lock.owns_lock()) return false;  // another thread waits for it
    if (!work || failed || closed) return true;
    if (!work->isCompleted()) return false;
    // Errors are thrown by wait(), or by the group if no thread waits.
    closed = work->exception() == nullptr;
    if (closed) group->end(operation.number, OperationRecord::State::kDone, work.get());
    return true;
  }

  const std::shared_ptr<Group::State> group;
  const Operation operation;
  std::mutex mutex;
  Work work;
  Tensors tensors;  // stay alive until the operation is over, for any backend
  bool failed = false;
  bool closed = false;  // done() has ended its record
};

/// The same memory without a history of operators. The backend may keep a tensor after its operation. If the
/// tensor became the output of an autograd function that has the group, each would keep the other alive.
inline Tensors without_history(Tensors tensors) {
  for (at::Tensor& each : tensors) {
    if (each.defined()) each = each.detach();
  }
  return tensors;
}

// Issues through `start`; kSync waits at once. A group of one rank has no backend: `alone` is called instead.
template <class Start, class Alone>
Pending Group::State::issue(const std::shared_ptr<State>& self, IssueMode mode, Operation operation,
                            Tensors tensors, Start&& start, Alone&& alone) {
  self->begin(operation);
  if (!self->parts.backend) {
    alone();
    self->end(operation.number, OperationRecord::State::kDone);
    return {};
  }
  std::optional<WaitScope> scope;  // a backend may wait as it starts
  if (mode == IssueMode::kSync) scope.emplace(*self, operation);
  Work work;
  try {
    tensors = without_history(std::move(tensors));
    work = start(*self->parts.backend, mode == IssueMode::kAsync, tensors);
  } catch (const InvalidArgument&) {
    // Rejected before the operation was published: a mistake of the caller, and the group stays usable.
    self->withdraw(operation);
    throw;
  } catch (...) {
    self->fail_operation(operation, std::current_exception());
  }
  if (mode == IssueMode::kAsync) {
    return Pending(std::make_shared<Pending::State>(self, operation, std::move(work), std::move(tensors)));
  }
  self->wait(operation, *work);
  return {};
}

}  // namespace trireme::comm
