#include "trireme/parallel/executor.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/schedule/validate.h"
#include "trireme/telemetry/rank_usage.h"

namespace trireme::parallel {
namespace {

using Handler = ActionHandlers::Handler;
using schedule::ActionKind;

const Handler& handler_of(const ActionHandlers& handlers, const schedule::Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return handlers.forward;
    case ActionKind::kBackward:
      return handlers.backward;
    case ActionKind::kBackwardInput:
      return handlers.backward_input;
    case ActionKind::kBackwardWeight:
      return handlers.backward_weight;
    case ActionKind::kSendForward:
      return handlers.send_forward;
    case ActionKind::kReceiveForward:
      return handlers.receive_forward;
    case ActionKind::kSendBackward:
      return handlers.send_backward;
    case ActionKind::kReceiveBackward:
      return handlers.receive_backward;
    case ActionKind::kRecompute:
      return handlers.recompute;
    case ActionKind::kUnshard:
      return handlers.unshard;
    case ActionKind::kReshard:
      return handlers.reshard;
    case ActionKind::kReduceGrad:
      return handlers.reduce_grad;
    case ActionKind::kStep:
      return handlers.step;
    case ActionKind::kIdle:
      break;
  }
  throw InvalidArgument("an idle slot cannot be executed; schedule::without_idle leaves them out");
}

telemetry::Activity activity_of(ActionKind kind) {
  using telemetry::Activity;
  switch (kind) {
    case ActionKind::kForward:
      return Activity::kForward;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kRecompute:
      return Activity::kBackward;
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      return Activity::kTransfer;
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
      return Activity::kWeights;
    case ActionKind::kReduceGrad:
      return Activity::kGradients;
    case ActionKind::kStep:
      return Activity::kUpdate;
    case ActionKind::kIdle:
      break;
  }
  return Activity::kOther;
}

}  // namespace

Executor::Executor(schedule::Program program, int pipeline_rank, ActionHandlers handlers,
                   telemetry::StatusPage& status, telemetry::TraceBuffer* trace)
    : rank_(pipeline_rank), handlers_(std::move(handlers)), status_(status), trace_(trace) {
  prepare(std::move(program));
  status_.usage().set_role(rank_);
}

void Executor::prepare(schedule::Program program) {
  schedule::validate(program);
  require(rank_ >= 0 && rank_ < static_cast<int>(program.ranks.size()), "program '", program.name,
          "' is for ", program.ranks.size(), " pipeline ranks; there is no rank ", rank_);
  steps_.clear();
  for (const auto& action : program.ranks[static_cast<std::size_t>(rank_)]) {
    const Handler& handler = handler_of(handlers_, action);
    require(handler != nullptr, "program '", program.name, "' has the action ", schedule::to_text(action),
            ", but no handler was given for its kind");
    const std::string name = schedule::to_text(action);
    const char* trace_name = trace_ == nullptr ? nullptr : trace_->trace().intern(name);
    steps_.push_back({action, name, trace_name, &handler});
  }
  program_ = std::move(program);
}

void Executor::execute(const PreparedAction& prepared) {
  status_.set_action(prepared.text);
  status_.usage().enter(activity_of(prepared.action.kind), prepared.action.microbatch);
  const char* key = prepared.action.microbatch < 0 ? nullptr : "microbatch";
  const telemetry::TraceScope span(trace_, "action", prepared.trace_name, {key, prepared.action.microbatch});
  (*prepared.handler)(prepared.action);
}

void Executor::run(std::uint64_t step) {
  restart();
  while (run_to_update(step)) {
  }
}

bool Executor::run_to_update(std::uint64_t step) {
  if (at_end()) return false;
  status_.set_step(step);
  bool updated = false;
  while (!at_end() && !updated) {
    const PreparedAction& prepared = steps_[next_++];
    execute(prepared);
    updated = prepared.action.kind == ActionKind::kStep;
  }
  return true;
}

void Executor::restart(schedule::Program program) {
  prepare(std::move(program));
  restart();
}

void Executor::replace(schedule::Program program, std::size_t num_known) {
  std::vector<schedule::Action> done;
  for (std::size_t i = 0; i < std::max(next_, num_known); ++i) done.push_back(steps_[i].action);
  prepare(std::move(program));
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (i < steps_.size() && steps_[i].action == done[i]) continue;
    throw InternalError(text("program '", program_.name, "' does not continue from action ",
                             schedule::to_text(done[i]), " at position ", i, " of rank ", rank_));
  }
}

}  // namespace trireme::parallel
