#include "trireme/parallel/executor.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

using Handler = std::function<void(const schedule::Action&)>;

const Handler& handler_of(const ActionHandlers& handlers, schedule::ActionKind kind) {
  switch (kind) {
    case schedule::ActionKind::kForward:
      return handlers.forward;
    case schedule::ActionKind::kBackward:
      return handlers.backward;
    case schedule::ActionKind::kReduceGrad:
      return handlers.reduce_grad;
    case schedule::ActionKind::kStep:
      return handlers.step;
  }
  throw InternalError("an action of a kind that no handler stands for");
}

}  // namespace

Executor::Executor(schedule::Program program, int pipeline_rank, ActionHandlers handlers,
                   telemetry::StatusPage& status)
    : program_(std::move(program)), handlers_(std::move(handlers)), status_(status) {
  schedule::validate(program_);
  require(pipeline_rank >= 0 && pipeline_rank < static_cast<int>(program_.ranks.size()), "program '",
          program_.name, "' is for ", program_.ranks.size(), " pipeline ranks; there is no rank ",
          pipeline_rank);
  for (const auto& action : program_.ranks[static_cast<std::size_t>(pipeline_rank)]) {
    const Handler& handler = handler_of(handlers_, action.kind);
    require(handler != nullptr, "program '", program_.name, "' has the action ", schedule::to_text(action),
            ", but no handler was given for its kind");
    steps_.push_back({action, schedule::to_text(action), &handler});
  }
}

void Executor::run(std::uint64_t step) {
  status_.set_step(step);
  for (const auto& [action, name, handler] : steps_) {
    status_.set_action(name);
    (*handler)(action);
  }
}

}  // namespace trireme::parallel
