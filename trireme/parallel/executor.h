#pragma once
// Runs a rank's part of a step program: looks each action up in the table of handlers and calls it. The
// current action is in the rank's StatusPage, so a stall or a death can be located to the action. A handler's
// exception passes through after the action has been noted. Not thread-safe; one executor per rank.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/schedule/program.h"
#include "trireme/telemetry/status_page.h"
#include "trireme/telemetry/trace.h"

namespace trireme::parallel {

/// A handler for each kind of action. Each is called with the action; the stage is one of this rank's. Kinds
/// that the program does not contain may be left out.
struct ActionHandlers {
  /// Runs one action and returns when it is done, or has begun, where it continues in the background.
  using Handler = std::function<void(const schedule::Action&)>;

  Handler forward = nullptr;
  Handler backward = nullptr;
  Handler backward_input = nullptr;
  Handler backward_weight = nullptr;
  Handler send_forward = nullptr;
  Handler receive_forward = nullptr;
  Handler send_backward = nullptr;
  Handler receive_backward = nullptr;
  Handler recompute = nullptr;
  Handler unshard = nullptr;
  Handler reshard = nullptr;
  Handler reduce_grad = nullptr;
  Handler step = nullptr;
};

class Executor {
 public:
  /// Validates the program. With `trace`, each action is a span there. Throws InvalidArgument when it cannot
  /// run or a handler that it needs is missing.
  Executor(schedule::Program program, int pipeline_rank, ActionHandlers handlers,
           telemetry::StatusPage& status, telemetry::TraceBuffer* trace = nullptr);

  /// Executes the rank's actions once, in order. `step` is the number shown in the status page.
  void run(std::uint64_t step);

  /// Continues up to and including the rank's next STEP, or to the end. False if there was nothing left to
  /// do. A pipeline executes its program like this, update by update.
  bool run_to_update(std::uint64_t step);
  /// Continues with another program, which must begin with the executed actions, and with `num_known` at
  /// least. Throws InternalError.
  void replace(schedule::Program program, std::size_t num_known = 0);
  /// Back to the first action, of another program where one is given.
  void restart() { next_ = 0; }
  void restart(schedule::Program program);
  bool at_end() const { return next_ == steps_.size(); }

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const schedule::Program& program() const { return program_; }

 private:
  /// An action with its text and handler looked up once: a step allocates nothing.
  struct PreparedAction {
    schedule::Action action;
    std::string text;
    const char* trace_name;  ///< null when nothing is traced
    const ActionHandlers::Handler* handler;
  };

  void prepare(schedule::Program program);
  void execute(const PreparedAction& prepared);

  schedule::Program program_;
  const int rank_;
  ActionHandlers handlers_;
  telemetry::StatusPage& status_;
  telemetry::TraceBuffer* trace_;
  std::vector<PreparedAction> steps_;
  std::size_t next_ = 0;  ///< action to run
};

}  // namespace trireme::parallel
