#include "cli/plan_steps.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <optional>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/plan/plan.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/schedule/simulate.h"

namespace trireme::cli {
namespace {

/// Share of a layer's time: in most layers, a forward is one product and a backward two.
constexpr double kForwardShare = 1.0 / 3;
constexpr double kBucketBytes = 25 << 20;  ///< parallel.bucket_mib by default

std::size_t microbatches_of(const StepOptions& options) {
  return options.num_microbatches == 0 ? 4 * options.num_workers : options.num_microbatches;
}

/// Bytes sent and received by each replica, as the planner counts them.
double reduction_s(double bytes, std::size_t replicas, double bandwidth) {
  const auto n = static_cast<double>(replicas);
  return 4 * (n - 1) * bytes / (n * bandwidth);
}

/// The stages of a program, with the cuts that minimize the slowest stage or link.
std::vector<plan::Stage> stages_of(const plan::Profile& profile, std::size_t num_stages, double bandwidth) {
  const plan::PlanOptions options = {
      .levels = {{.num_workers = num_stages, .bandwidth_bytes_per_s = bandwidth}}, .straight = true};
  return plan::make_plan(profile, options, "time").stages;
}

schedule::Program program_of(const StepOptions& options, std::size_t pipeline, std::size_t microbatches) {
  const auto m = static_cast<int>(microbatches);
  if (pipeline == 1) return schedule::data_parallel(m);
  return schedule::lower(schedule::make_schedule(
      options.schedule, {.num_ranks = static_cast<int>(pipeline), .num_microbatches = m}));
}

StepPlan step_plan(const plan::Profile& profile, const StepOptions& options, std::size_t pipeline) {
  const std::size_t data = options.num_workers / pipeline, microbatches = microbatches_of(options) / data;
  const double bandwidth = options.bandwidth_bytes_per_s;
  StepPlan plan{.pipeline = pipeline, .data = data, .microbatches = microbatches, .cuts = {}};
  const schedule::Program program = program_of(options, pipeline, microbatches);
  schedule::Costs costs;
  costs.bandwidth = std::isfinite(bandwidth) ? bandwidth : 0;
  const auto num_stages = static_cast<std::size_t>(program.num_stages);
  for (const plan::Stage& stage : stages_of(profile, num_stages, bandwidth)) {
    const double forward = kForwardShare * stage.work.compute_s, backward = stage.work.compute_s - forward;
    costs.stages.push_back({.forward = forward,
                            .backward_input = backward / 2,
                            .backward_weight = backward / 2,
                            .reduce = reduction_s(stage.work.parameter_bytes, data, bandwidth)});
    costs.buckets = std::max(costs.buckets, static_cast<int>(stage.work.parameter_bytes / kBucketBytes));
    if (stage.first_state > 0) plan.cuts.push_back(stage.first_state);
    costs.message_bytes = std::max(costs.message_bytes, profile.output_bytes(stage.first_state));
  }
  plan.step_s = schedule::simulate(program, costs).makespan;
  return plan;
}

/// Empty: the pipeline is not possible.
std::optional<StepPlan> possible_plan(const plan::Profile& profile, const StepOptions& options,
                                      std::size_t pipeline) {
  const std::size_t microbatches = microbatches_of(options);
  if (options.num_workers % pipeline != 0 || microbatches % (options.num_workers / pipeline) != 0)
    return std::nullopt;
  try {
    return step_plan(profile, options, pipeline);
  } catch (const InvalidArgument&) {  // too few layers, or micro-batches that the schedule rejects
    return std::nullopt;
  }
}

}  // namespace

std::vector<StepPlan> step_plans(const plan::Profile& profile, const StepOptions& options) {
  require(!schedule::find_schedule(options.schedule).asynchronous, "schedule '", options.schedule,
          "' is never flushed: the slowest stage or link above is its time per micro-batch");
  std::vector<StepPlan> plans;
  const std::size_t longest = std::min(options.num_workers, profile.num_layers());
  for (std::size_t pipeline = 1; pipeline <= longest; ++pipeline) {
    if (std::optional<StepPlan> plan = possible_plan(profile, options, pipeline))
      plans.push_back(std::move(*plan));
  }
  require(!plans.empty(), microbatches_of(options), " micro-batches cannot be divided among ",
          options.num_workers, " workers; take a multiple of them");
  std::ranges::stable_sort(plans, std::less<>(), &StepPlan::step_s);
  return plans;
}

std::string to_toml(const StepPlan& step, const plan::Profile& profile, const StepOptions& options) {
  require(profile.num_layers() == profile.num_states(),
          "the profile is no chain of layers, and the trainer runs chains; make one with trireme profile");
  std::ostringstream out;
  out << "# trireme plan: a step of " << microbatches_of(options)
      << " micro-batches of the profile's size, on " << options.num_workers
      << " ranks\n[train]\naccumulation = " << (step.pipeline == 1 ? step.microbatches : 1)
      << "\n\n[parallel]\ndata = " << step.data << "\npipeline = " << step.pipeline << "\n";
  if (step.pipeline > 1) {
    out << "schedule = \"" << options.schedule << "\"\nmicrobatches = " << step.microbatches << "\ncuts = [";
    for (std::size_t i = 0; i < step.cuts.size(); ++i) out << (i == 0 ? "" : ", ") << step.cuts[i];
    out << "]\n";
  }
  out << "planned_step_s = " << std::showpoint << std::setprecision(6) << step.step_s << "\n";
  return std::move(out).str();
}

}  // namespace trireme::cli
