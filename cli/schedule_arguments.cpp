#include "cli/schedule_arguments.h"

#include "cli/numbers.h"
#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

constexpr std::uint64_t kMaxProgramBytes = std::uint64_t{64} << 20;

schedule::Program read_program(const ScheduleArguments& given) {
  schedule::Program program =
      schedule::parse_csv(read_bounded_stream(given.file, kMaxProgramBytes, "schedule"));
  program.name = given.file;
  if (given.replicated) program.replicas = schedule::ranks_of_stages(program);
  program.update_every = given.options.update_every;
  if (program.update_every > 0) program.versions = schedule::WeightVersions::kStashed;
  return program;
}

}  // namespace

void declare_size(CLI::App& app, ScheduleArguments& given) {
  auto& options = given.options;
  app.add_option("--ranks", options.num_ranks, "Ranks of the pipeline")->type_name("P")->check(above_zero());
  app.add_option("--chunks", options.num_chunks, "Stages per rank, where the schedule leaves a choice")
      ->type_name("V")
      ->check(above_zero());
  app.add_option("--microbatches", options.num_microbatches, "Micro-batches of a step")
      ->type_name("M")
      ->check(above_zero());
  app.add_option("--group-size", options.group_size,
                 "interleaved-*: micro-batches before the next chunk's turn")
      ->type_name("G")
      ->check(above_zero());
  app.add_option("--replicas", given.replicas, "1f1b-rr: ranks of each stage: 3,1")
      ->type_name("R,...")
      ->delimiter(',');
  app.add_flag("--vertical-sync", options.vertical_sync, "pipedream: the same weights on every stage");
}

void declare_costs(CLI::App& app, ScheduleArguments& given) {
  const auto time = [&app](const char* name, double& value, const char* what) {
    app.add_option(name, value, what)->type_name("T")->check(zero_or_more());
  };
  time("--forward", given.forward, "Time of a stage's forward (default: 1)");
  time("--backward-input", given.backward_input, "Time of its input gradient (default: 1)");
  time("--backward-weight", given.backward_weight, "Time of its weight gradient (default: 1)");
  time("--unshard", given.unshard, "Time until a stage's weights are gathered (default: 0)");
  time("--reduce", given.reduce, "Time until its gradients are reduced over replicas (default: 0)");
  time("--update", given.update, "Time of its update (default: 0)");
  app.add_option("--buckets", given.options.costs.buckets,
                 "Parts in which they are reduced, from the last backward on (default: 1)")
      ->type_name("N")
      ->check(above_zero());
  time("--hop", given.options.costs.hop, "Latency of a message between ranks (default: 0)");
  app.add_option("--message-bytes", given.options.costs.message_bytes,
                 "Bytes of an activation between stages")
      ->type_name("N")
      ->check(zero_or_more());
  app.add_option("--bandwidth", given.options.costs.bandwidth,
                 "Bytes per unit of time of a link (default: no limit)")
      ->type_name("N")
      ->check(above_zero());
  app.add_option("--overlap", given.options.costs.overlap,
                 "Time of an overlapped pair / that of its parts (default: 1)")
      ->type_name("X")
      ->check(above_zero());
  app.add_option("--memory-limit", given.options.memory_limit, "Activations that a rank may hold")
      ->type_name("X")
      ->check(above_zero());
  app.add_option("--kept-for-weight", given.kept_for_weight,
                 "Share of an activation that lives on between I and W")
      ->type_name("S")
      ->check(share());
}

void declare_file_facts(CLI::App& app, ScheduleArguments& given) {
  app.add_flag("--replicated", given.replicated, "FILE.csv: a stage may be on several ranks");
  app.add_option("--update-every", given.options.update_every,
                 "pipedream-2bw, FILE.csv: a stage steps after so many backwards, without a flush")
      ->type_name("K")
      ->check(above_zero());
}

schedule::Costs costs_of(const ScheduleArguments& given) {
  schedule::Costs costs = given.options.costs;
  costs.stages = {{.forward = given.forward,
                   .backward_input = given.backward_input,
                   .backward_weight = given.backward_weight,
                   .unshard = given.unshard,
                   .reduce = given.reduce,
                   .update = given.update}};
  if (given.kept_for_weight >= 0) costs.kept_for_weight = given.kept_for_weight;
  return costs;
}

schedule::Program program_of(const ScheduleArguments& given) {
  require(given.name.empty() != given.file.empty(), "give the name of a schedule or a file, ",
          given.name.empty() ? "found neither" : "not both", "; the names: trireme schedule");
  if (!given.file.empty()) return read_program(given);
  require(given.options.num_ranks > 0 && given.options.num_microbatches > 0, "schedule '", given.name,
          "' needs --ranks and --microbatches");
  schedule::ScheduleOptions options = given.options;
  options.replicas = given.replicas;
  options.costs = costs_of(given);
  return schedule::make_schedule(given.name, options);
}

}  // namespace trireme::cli
