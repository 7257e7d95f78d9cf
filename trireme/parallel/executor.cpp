#include "trireme/parallel/executor.h"

#include <utility>

#include "trireme/base/error.h"
#include "trireme/schedule/validate.h"

namespace trireme::parallel {
namespace {

using Handler = std::function<void(const schedule::Action&)>;

const Handler& handler_of(const ActionHandlers& handlers, const schedule::Action& action) {
  switch (action.kind) {
    case schedule::ActionKind::kForward:
      return handlers.forward;
    case schedule::ActionKind::kBackward:
      return handlers.backward;
    case schedule::ActionKind::kReduceGrad:
      return handlers.reduce_grad;
    case schedule::ActionKind::kStep:
      return handlers.step;
    default:
      throw InvalidArgument(
          text("the executor has no way to run the action '", schedule::to_text(action), "'"));
  }
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
