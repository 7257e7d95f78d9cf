#include "trireme/base/error.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/schedule/validate.h"

namespace trireme::parallel {
namespace {

schedule::Program order_of(const PipelineOptions& options, int num_ranks) {
  if (options.program) return *options.program;
  require(options.num_microbatches >= 1, "a pipeline needs at least one micro-batch, not ",
          options.num_microbatches);
  return schedule::make_schedule(options.schedule, {.num_ranks = num_ranks,
                                                    .num_chunks = options.num_chunks,
                                                    .num_microbatches = options.num_microbatches});
}

void check_runs_here(const schedule::Program& order, int num_ranks) {
  require(static_cast<int>(order.ranks.size()) == num_ranks, "schedule '", order.name, "' is for ",
          order.ranks.size(), " ranks, the pipeline has ", num_ranks);
  require(order.update_every == 0 && order.versions == schedule::WeightVersions::kNewest, "schedule '",
          order.name, "' updates weights in the middle of its micro-batches; this executor runs those that ",
          "update at the end");
  const auto ranks = schedule::ranks_of_stages(order);
  for (std::size_t stage = 0; stage < ranks.size(); ++stage) {
    require(ranks[stage].size() == 1, "schedule '", order.name, "' holds stage ", stage, " on ",
            ranks[stage].size(), " ranks; this executor runs those that hold each stage on one");
  }
}

}  // namespace

schedule::Program pipeline_program(const PipelineOptions& options, int num_ranks,
                                   schedule::Transport transport) {
  require(options.num_rounds >= 1, "a step has at least one round of a pipeline, not ", options.num_rounds);
  const schedule::Program order = order_of(options, num_ranks);
  check_runs_here(order, num_ranks);
  const bool is_whole = schedule::form_of(order) == schedule::Form::kStep;
  require(!is_whole || options.num_rounds == 1, "program '", order.name,
          "' is a whole step, update included: it cannot be run ", options.num_rounds,
          " times before the update; give an order of computations alone");
  schedule::Program program =
      is_whole ? without_idle(order)
               : schedule::lower(schedule::repeat(order, options.num_rounds), {.transport = transport});
  schedule::validate(program, {.transport = transport});
  return program;
}

}  // namespace trireme::parallel
