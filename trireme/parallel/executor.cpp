#include "trireme/parallel/executor.h"

#include <utility>

#include "trireme/base/error.h"
#include "trireme/schedule/validate.h"

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

}  // namespace

Executor::Executor(schedule::Program program, int pipeline_rank, ActionHandlers handlers,
                   telemetry::StatusPage& status, telemetry::TraceBuffer* trace)
    : program_(std::move(program)), handlers_(std::move(handlers)), status_(status), trace_(trace) {
  schedule::validate(program_);
  require(pipeline_rank >= 0 && pipeline_rank < static_cast<int>(program_.ranks.size()), "program '",
          program_.name, "' is for ", program_.ranks.size(), " pipeline ranks; there is no rank ",
          pipeline_rank);
  for (const auto& action : program_.ranks[static_cast<std::size_t>(pipeline_rank)]) {
    const Handler& handler = handler_of(handlers_, action);
    require(handler != nullptr, "program '", program_.name, "' has the action ", schedule::to_text(action),
            ", but no handler was given for its kind");
    const std::string name = schedule::to_text(action);
    const char* trace_name = trace == nullptr ? nullptr : trace->trace().intern(name);
    steps_.push_back({action, name, trace_name, &handler});
  }
}

void Executor::run(std::uint64_t step) {
  status_.set_step(step);
  for (const auto& [action, name, trace_name, handler] : steps_) {
    status_.set_action(name);
    const char* key = action.microbatch < 0 ? nullptr : "microbatch";
    const telemetry::TraceScope span(trace_, "action", trace_name, {key, action.microbatch});
    (*handler)(action);
  }
}

}  // namespace trireme::parallel
