#pragma once
// From the order of computations to a program that ranks can execute: it adds sends and receives, gathers of
// weights, reductions of gradients and the step. Pure and thread-safe. Two models of transport:
// - buffered: a send returns at once. Each receive is placed where the sender's output exists: the ranks are
//   visited in turn, one cell each, and a send and its receive are placed together. One order of all
//   transfers then fits every rank's list, so there is no deadlock even where sends wait; but a rank may then
//   wait for a message long before it needs it. This is the order of torch.distributed.pipelining.
// - rendezvous: a send lasts until its receive runs (nccl). The ranks are visited in the order of time; one
//   that has sent waits until the receiver is between two computations. All transfers between the same two
//   computations are started as one BATCH, so a send never blocks the receive that it waits for.

#include "trireme/schedule/program.h"
#include "trireme/schedule/transport.h"

namespace trireme::schedule {

struct LoweringOptions {
  Transport transport = Transport::kBuffered;
  bool with_update = true;       ///< REDUCE_GRAD after a stage's last backward, STEP at the end
  int max_unsharded_stages = 0;  ///< UNSHARD before use, RESHARD when so many others come first; 0: neither
};

/// Adds transfers and updates to an order of computations. Validates the order first and throws
/// InvalidArgument as validate() does, and when the program has transfers already.
Program lower(const Program& order, const LoweringOptions& options = {});

/// Of weights that ranks hold in shards: UNSHARD ahead of use for as many stages of a rank as come next,
/// RESHARD when as many others come first, or none. So many are gathered at a time; from 2 on the next one is
/// on its way while one computes; with all stages each is gathered once. Idle slots are left out. Throws
/// InvalidArgument: less than 1.
Program gathered_for_use(Program program, int max_stages);
bool has_gathers(const Program& program);

/// Adjacent I and W of one micro-batch become one B; idle slots are left out.
Program merge_backward(Program program);

}  // namespace trireme::schedule
