#pragma once
// Proves before a program starts that it can run and does the whole work:
// - each stage on one rank, or on its replicas, and each micro-batch of it on one of them;
// - each micro-batch forward once, then B once or I and W once each, with all that they need in place;
// - buffers: nothing is used before it is there or after it was freed, nothing is received without a use (an
//   output lives until the backward, weights between UNSHARD and RESHARD);
// - every SEND has its RECV, in the sender's order on each link;
// - gradients are reduced once after the last backward of a group, then one STEP, nothing after the last;
// - the ranks do not wait for each other in a circle under the given transport.
// Pure and thread-safe; milliseconds for thousands of actions.

#include "trireme/schedule/program.h"
#include "trireme/schedule/transport.h"

namespace trireme::schedule {

/// The actions of a step that a program contains.
enum class Form {
  kOrder,      ///< computations alone; waits for neighbours are implied
  kTransfers,  ///< and sends and receives
  kStep,       ///< and REDUCE_GRAD and STEP: all actions that ranks execute
};

/// The form that the program's actions suggest.
Form form_of(const Program& program);

struct ValidateOptions {
  Form form = Form::kStep;
  Transport transport = Transport::kBuffered;
};

/// Throws InvalidArgument that names rank, position and action. Positions count cells from 0.
void validate(const Program& program, const ValidateOptions& options = {});

}  // namespace trireme::schedule
