#pragma once
// Elastic jobs: `trireme launch --elastic` and a program that calls run_elastic(). When a rank fails, the
// other processes keep running with all that they have in memory. The launcher forms the next world of them,
// of spares and of replacements. run_elastic() then calls the program's function again with the context of
// that world. docs/elastic.md. One thread; once per process.

#include <functional>

#include "trireme/base/error.h"
#include "trireme/base/stop_request.h"
#include "trireme/comm/context.h"

namespace trireme::comm {

/// Thrown by the function of run_elastic() on every rank, after next_world_is_asked(): its world ends in good
/// order, and the function is called again in the next one.
class WorldChange : public CommError {
 public:
  WorldChange() : CommError("hosts have joined the job, or leave it") {}
};

/// Whether the launcher of an elastic job wants this world to end, because hosts have joined or leave. Ranks
/// learn it at different times: they agree on a step, for example by an all-reduce, keep their state where
/// the next world finds it, and throw WorldChange. A program that never asks joins the next world after the
/// next failure. Costs one read of memory; thread-safe.
bool next_world_is_asked(Context& context);
/// Whether the launcher of this rank's host was told to leave the job: once the ranks have handed the host's
/// state over, a next world has no rank there.
bool host_leaves(Context& context);

struct ElasticOptions {
  ContextOptions context = {};
  /// Whether the program can run on so many ranks; null: on any number. Asked for 1 to the number of ranks
  /// that the job may have. The launcher forms no other worlds.
  std::function<bool(int num_ranks)> can_run_on = nullptr;
  /// A stop that is asked for while the process waits for its next world ends the waiting; null: none.
  const StopRequest* stop = nullptr;
};

/// Joins the world that the environment describes and calls `body`. In an elastic job a CommError of the body
/// or of the rendezvous is the loss of that world: the context ends, and `body` is called again in the next
/// one, as soon as the launcher has formed it. context.environment().restart_count is then the world's
/// generation. Any other exception ends the job and is thrown. In other jobs it is thrown, too.
/// A spare waits here until it has a rank; the launcher ends it when it is not needed.
void run_elastic(const ElasticOptions& options, const std::function<void(Context&)>& body);

}  // namespace trireme::comm
