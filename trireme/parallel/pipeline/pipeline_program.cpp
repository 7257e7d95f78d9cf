#include "trireme/base/error.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/schedule/carried_out.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/schedule/validate.h"

namespace trireme::parallel {
namespace {

schedule::Program order_of(const PipelineOptions& options, int num_ranks, int num_updates) {
  if (options.program) return *options.program;
  require(options.num_microbatches >= 1, "a pipeline needs at least one micro-batch, not ",
          options.num_microbatches);
  const bool flushes = !is_asynchronous(options);
  schedule::ScheduleOptions wanted;
  wanted.num_ranks = num_ranks;
  wanted.num_chunks = options.num_chunks;
  wanted.num_microbatches = options.num_microbatches * (flushes ? 1 : num_updates);
  wanted.replicas = options.replicas;
  wanted.update_every = flushes ? 0 : options.num_microbatches;
  wanted.vertical_sync = options.vertical_sync;
  return schedule::make_schedule(options.schedule, wanted);
}

/// Rejects options that make no sense for asynchronous updates.
void check_asynchronous(const PipelineOptions& options, const schedule::Program& order) {
  const bool groups = order.versions == schedule::WeightVersions::kOneBehind || !order.replicas.empty();
  require(options.num_rounds == 1, "schedule '", order.name,
          "' updates without a flush: ", options.num_rounds,
          " rounds before an update would need one; take one round of more micro-batches",
          groups ? "" : " by pipedream-2bw");
  require(groups || options.num_microbatches == 1, "schedule '", order.name,
          "' updates after every backward: it has 1 micro-batch per update, not ", options.num_microbatches,
          "; pipedream-2bw takes several");
  require(!options.vertical_sync || order.versions == schedule::WeightVersions::kVertical, "schedule '",
          order.name, "' has no vertical sync; pipedream has");
}

bool is_sharded(const PipelineOptions& options) { return options.zero.stage != ZeroStage::kNone; }

/// Weights that are kept between uses are gathered once per step. Others are gathered around each use, the
/// next stage's while one computes.
schedule::Program with_gathers(schedule::Program program, const PipelineOptions& options) {
  require(options.zero.gathered_stages >= 0,
          "the stages whose weights are gathered at a time are a number, or 0 for all, not ",
          options.zero.gathered_stages);
  const bool keeps = options.zero.stage != ZeroStage::kParameters || options.zero.gathered_stages == 0;
  const int all = program.num_stages;
  return schedule::gathered_for_use(std::move(program), keeps ? all : options.zero.gathered_stages);
}

void check_carried_out(const schedule::Program& program, const PipelineOptions& options) {
  const std::string found = schedule::not_carried_out(
      program, options.recompute ? schedule::Activations::kDropped : schedule::Activations::kKept,
      is_sharded(options) ? schedule::Weights::kSharded : schedule::Weights::kWhole);
  require(found.empty(), "program '", program.name, "': ", found);
}

}  // namespace

bool is_asynchronous(const PipelineOptions& options) {
  if (options.program) return options.program->update_every > 0;
  return schedule::find_schedule(options.schedule).asynchronous;
}

schedule::Program pipeline_program(const PipelineOptions& options, int num_ranks,
                                   schedule::Transport transport, int num_updates) {
  require(options.num_rounds >= 1, "a step has at least one round of a pipeline, not ", options.num_rounds);
  const schedule::Program order = order_of(options, num_ranks, num_updates);
  require(static_cast<int>(order.ranks.size()) == num_ranks, "schedule '", order.name, "' is for ",
          order.ranks.size(), " ranks, the pipeline has ", num_ranks);
  if (is_asynchronous(options)) {
    require(
        !is_sharded(options), "schedule '", order.name,
        "' updates each stage on its own time: there are no replicas over which to shard its weights; leave "
        "zero at 0");
    check_asynchronous(options, order);
  } else {
    require(!options.vertical_sync, "schedule '", order.name,
            "' has one version of the weights: vertical sync is for pipedream");
  }
  const bool is_whole = order.update_every == 0 && schedule::form_of(order) == schedule::Form::kStep;
  require(!is_whole || options.num_rounds == 1, "program '", order.name,
          "' is a whole step, update included: it cannot be run ", options.num_rounds,
          " times before the update; give an order of computations alone");
  schedule::Program program =
      is_whole ? without_idle(order)
               : schedule::lower(schedule::repeat(order, options.num_rounds), {.transport = transport});
  if (is_sharded(options) && !schedule::has_gathers(program)) program = with_gathers(program, options);
  schedule::validate(program, {.transport = transport});
  check_carried_out(order, options);
  return program;
}

}  // namespace trireme::parallel
