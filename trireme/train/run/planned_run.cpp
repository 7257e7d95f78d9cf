#include "trireme/train/run/internal/planned_run.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "trireme/base/available_memory.h"
#include "trireme/base/bounded_file.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/planner/measure_forms.h"
#include "trireme/train/run/fastest_plan.h"
#include "trireme/train/run/internal/on_main.h"
#include "trireme/train/run/run_folder.h"
#include "trireme/train/step/internal/check.h"

namespace trireme::train {
namespace {

/// Rank 0 searches, while the others wait.
constexpr double kSearchSeconds = 20;

RankLayout layout_of(const comm::Context& context) {
  return {.world_size = context.world_size(), .ranks_of_host = context.local_world_size()};
}

FormOptions forms_of(const RunPlan& run) {
  return {.model = run.model, .objective = run.objective, .is_own_data = run.data.has_value()};
}

std::optional<MeasuredForms> kept_costs(const RunConfig& config, const comm::Context& context,
                                        const FormOptions& parts) {
  return parts.has_own_parts() ? std::nullopt : read_kept(config, layout_of(context));
}

class Choice {
 public:
  Choice(const RunConfig& config, comm::Context& context, const FormOptions& parts)
      : config_(config), context_(context), parts_(parts) {}

  /// None: the file has no plan for this number of ranks.
  std::optional<ChosenPlan> of_file(const std::filesystem::path& file) {
    std::string found;
    on_main(context_, [&] {
      if (std::filesystem::exists(file)) found = read_bounded_file(file, kMaxConfigBytes, "plan");
    });
    found = from_main(found);
    if (found.empty()) return std::nullopt;
    const std::vector<PlannedSetting> settings = parse_settings(found, file.string());
    const RunConfig config = with_settings(config_, settings, file.string());
    if (min_ranks(config) != context_.world_size()) return std::nullopt;
    ChosenPlan chosen{.plan = resolve_plan(config, context_.world_size()), .told = "as in the run's folder"};
    on_main(context_, [&] { chosen.prediction = prediction_of(config); });
    return chosen;
  }

  ChosenPlan of_search(const data::DataSource& data) {
    const MeasuredForms measured = known_or_measured(config_, context_, data, parts_);
    std::string settings, told;
    std::optional<PlannedStep> prediction;
    on_main(context_, [&] {
      const telemetry::OwnWork work(context_.status(), "searching for a plan");
      const double end_s = now_s() + kSearchSeconds;
      PlanSearch search =
          search_plans(config_, context_.world_size(), measured,
                       {.limit_bytes = limit_bytes(), .is_over = [end_s] { return now_s() > end_s; }});
      if (search.plans.empty())
        throw InvalidArgument(
            text("no plan ", search.is_complete ? "" : "of those tried in time ", "fits into ",
                 human_bytes(static_cast<std::uint64_t>(search.limit_bytes)), " per rank; the smallest, ",
                 in_words(search.too_large.front().config, context_.world_size()), ", ",
                 why_not(search.too_large.front(), search.too_large.front(), search.limit_bytes),
                 "; use more ranks, or a smaller model or train.global_batch"));
      prediction = search.plans.front();
      settings = to_toml(prediction->settings);
      told = text("fastest of ", search.plans.size() + search.too_large.size());
    });
    const RunConfig config = with_settings(config_, parse_settings(from_main(settings), "the plan of rank 0"),
                                           "the plan of rank 0");
    return {.plan = resolve_plan(config, context_.world_size()),
            .told = std::move(told),
            .prediction = std::move(prediction)};
  }

 private:
  std::string from_main(const std::string& words) const {
    return context_.world().all_gather_text(context_.is_main() ? words : std::string()).front();
  }

  /// Memory limit of a rank; 0: no limit.
  std::int64_t limit_bytes() const {
    if (!context_.device().is_cpu()) {
      context_.log().warning(
          "parallel.plan = \"auto\" has no limit of memory on a device; trireme plan --memory GIB has");
      return 0;
    }
    return static_cast<std::int64_t>(available_memory().bytes) / context_.local_world_size();
  }

  std::optional<PlannedStep> prediction_of(const RunConfig& config) const {
    const auto measured = kept_costs(config_, context_, parts_);
    if (!measured) return std::nullopt;
    try {
      return plan_step(config, context_.world_size(), *measured);
    } catch (const InvalidArgument&) {  // costs of another build
      return std::nullopt;
    }
  }

  const RunConfig& config_;  ///< without a plan yet
  comm::Context& context_;
  const FormOptions& parts_;
};

std::string words_and_settings(const ParallelPlan& plan) {
  return text("# ", in_words(plan.config(), plan.world_size()), "\n",
              to_toml(planned_settings(plan.config())));
}

}  // namespace

ChosenPlan choose_plan(const RunConfig& config, const ParallelPlan& open, comm::Context& context,
                       const data::DataSource& data, const RunPlan& run, ResumeMode resume_mode) {
  if (config.parallel.plan != "auto") return {.plan = open};
  const FormOptions parts = forms_of(run);
  Choice choice(config, context, parts);
  std::string goes_on;
  on_main(context, [&] {
    if (resume_mode != ResumeMode::kNever) goes_on = "yes";
  });
  goes_on = context.world().all_gather_text(goes_on).front();
  if (!goes_on.empty()) {
    const std::filesystem::path file = RunFolder{config.run_folder()}.plan();
    if (std::optional<ChosenPlan> chosen = choice.of_file(file)) return *std::move(chosen);
  }
  return choice.of_search(data);
}

ParallelPlan fastest_plan(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                          const FastestPlanOptions& options) {
  const FormOptions& parts = options.parts;
  RunConfig open = config;
  open.parallel.plan = "none";  // the result is an ordinary plan
  check_data_of(resolve_plan(before_planning(open, context.world_size()), context.world_size()), data,
                parts.objective);
  Choice choice(open, context, parts);
  const auto fitted = [&](const ParallelPlan& plan) {
    return fit(plan, parts.model ? *parts.model : *make_checked_model(plan, data, parts.objective));
  };
  if (!options.file.empty()) {
    if (const std::optional<ChosenPlan> kept = choice.of_file(options.file)) return fitted(kept->plan);
  }
  const ParallelPlan plan = choice.of_search(data).plan;
  if (!options.file.empty())
    on_main(context, [&] {
      if (options.file.has_parent_path()) make_folder(options.file.parent_path());
      write_file_atomic(options.file, words_and_settings(plan));
    });
  return fitted(plan);
}

void write_plan(const ChosenPlan& chosen, const std::filesystem::path& file, RunRecorder& recorder) {
  const RunConfig& config = chosen.plan.config();
  const std::string words = in_words(config, chosen.plan.world_size());
  write_file_atomic(file, words_and_settings(chosen.plan));
  recorder.note(text("plan: ", words, ", ", chosen.told, "; ",
                     std::round(1e5 * config.parallel.planned_step_s) / 1e2, " ms per step by the estimate; ",
                     file.string(), " repeats it"));
}

MeasuredStep mean_step(const StepTimes& steps, int pipeline_rank, const MemoryUse& at_peak) {
  const auto count = static_cast<double>(steps.steps);
  return {.pipeline_rank = pipeline_rank,
          .step_s = (steps.steps_s - steps.data_wait_s) / count,
          .forward_s = steps.forward_s / count,
          .backward_s = steps.backward_s / count,
          .update_s = steps.update_s / count,
          .at_peak = at_peak};
}

std::optional<PlanReview> review_run(const ChosenPlan& chosen, const RunConfig& config,
                                     comm::Context& context, const RunPlan& run, const StepTimes& steps,
                                     const MemoryUse& memory) {
  if (config.parallel.plan != "auto" || steps.steps == 0) return std::nullopt;
  const MeasuredStep own = mean_step(steps, chosen.plan.mesh().coordinate(context.rank(), "pp"), memory);
  std::string mine = text(own.pipeline_rank);
  for (const double seconds : {own.step_s, own.forward_s, own.backward_s, own.update_s})
    mine += text(' ', seconds);
  for (const std::int64_t bytes : own.at_peak.bytes) mine += text(' ', bytes);
  std::vector<MeasuredStep> ranks;
  for (const std::string& each : context.world().all_gather_text(mine)) {
    std::istringstream fields(each);
    MeasuredStep& rank = ranks.emplace_back();
    fields >> rank.pipeline_rank >> rank.step_s >> rank.forward_s >> rank.backward_s >> rank.update_s;
    for (std::int64_t& bytes : rank.at_peak.bytes) fields >> bytes;
  }
  if (!chosen.prediction) return std::nullopt;
  PlanReview review = review_plan(*chosen.prediction, ranks);
  if (const auto kept = kept_costs(config, context, forms_of(run)))
    keep(config, layout_of(context), corrected(*kept, chosen.plan, review));
  return review;
}

}  // namespace trireme::train
