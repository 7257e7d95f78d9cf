#include "trireme/train/run/internal/planned_run.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "trireme/base/available_memory.h"
#include "trireme/base/bounded_file.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/train/planner/measure_forms.h"
#include "trireme/train/run/internal/on_main.h"
#include "trireme/train/run/run_folder.h"

namespace trireme::train {
namespace {

/// Rank 0 searches, and the others wait for it.
constexpr double kSearchSeconds = 20;

RankLayout layout_of(const comm::Context& context) {
  return {.world_size = context.world_size(), .ranks_of_host = context.local_world_size()};
}

FormOptions forms_of(const RunPlan& run) {
  return {.model = run.model, .objective = run.objective, .is_own_data = run.data.has_value()};
}

std::optional<MeasuredForms> kept_costs(const RunConfig& config, const comm::Context& context,
                                        const RunPlan& run) {
  return forms_of(run).has_own_parts() ? std::nullopt : read_kept(config, layout_of(context));
}

class Choice {
 public:
  Choice(const RunConfig& config, comm::Context& context, const data::DataSource& data, const RunPlan& run)
      : config_(config), context_(context), data_(data), run_(run) {}

  /// None: the folder has no plan for as many ranks.
  std::optional<ChosenPlan> of_folder() {
    std::string found;
    on_main(context_, [&] {
      const std::filesystem::path file = RunFolder{config_.run_folder()}.plan();
      if (std::filesystem::exists(file)) found = read_bounded_file(file, kMaxConfigBytes, "plan");
    });
    found = from_main(found);
    if (found.empty()) return std::nullopt;
    const std::string name = RunFolder{config_.run_folder()}.plan().string();
    const std::vector<PlannedSetting> settings = parse_settings(found, name);
    const RunConfig config = with_settings(config_, settings, name);
    if (min_ranks(config) != context_.world_size()) return std::nullopt;
    ChosenPlan chosen{.plan = resolve_plan(config, context_.world_size()), .told = "as in the run's folder"};
    on_main(context_, [&] { chosen.prediction = prediction_of(config); });
    return chosen;
  }

  ChosenPlan of_search() {
    const MeasuredForms measured = known_or_measured(config_, context_, data_, forms_of(run_));
    std::string settings, told;
    std::optional<PlannedStep> prediction;
    on_main(context_, [&] {
      const telemetry::OwnWork work(context_.status(), "searching for a plan");
      const double end_s = now_s() + kSearchSeconds;
      PlanSearch search =
          search_plans(config_, context_.world_size(), measured,
                       {.limit_bytes = limit_bytes(), .is_over = [end_s] { return now_s() > end_s; }});
      if (search.plans.empty())
        throw InvalidArgument(text(
            "parallel.plan = \"auto\": no plan ", search.is_complete ? "" : "of those tried in time ",
            "fits into ", human_bytes(static_cast<std::uint64_t>(search.limit_bytes)),
            " per rank; the smallest, ", in_words(search.too_large.front().config, context_.world_size()),
            ", ", why_not(search.too_large.front(), search.too_large.front(), search.limit_bytes),
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

  /// Of a rank; 0: no limit.
  std::int64_t limit_bytes() const {
    if (!context_.device().is_cpu()) {
      context_.log().warning(
          "parallel.plan = \"auto\" has no limit of memory on a device; trireme plan --memory GIB has");
      return 0;
    }
    return static_cast<std::int64_t>(available_memory().bytes) / context_.local_world_size();
  }

  std::optional<PlannedStep> prediction_of(const RunConfig& config) const {
    const auto measured = kept_costs(config_, context_, run_);
    if (!measured) return std::nullopt;
    try {
      return plan_step(config, context_.world_size(), *measured);
    } catch (const InvalidArgument&) {  // costs of another build
      return std::nullopt;
    }
  }

  const RunConfig& config_;  ///< with its plan open
  comm::Context& context_;
  const data::DataSource& data_;
  const RunPlan& run_;
};

}  // namespace

ChosenPlan choose_plan(const RunConfig& config, const ParallelPlan& open, comm::Context& context,
                       const data::DataSource& data, const RunPlan& run, ResumeMode resume_mode) {
  if (config.parallel.plan != "auto") return {.plan = open};
  Choice choice(config, context, data, run);
  std::string goes_on;
  on_main(context, [&] {
    if (resume_mode != ResumeMode::kNever) goes_on = "yes";
  });
  goes_on = context.world().all_gather_text(goes_on).front();
  if (!goes_on.empty()) {
    if (std::optional<ChosenPlan> chosen = choice.of_folder()) return *std::move(chosen);
  }
  return choice.of_search();
}

void write_plan(const ChosenPlan& chosen, const std::filesystem::path& file, RunRecorder& recorder) {
  const RunConfig& config = chosen.plan.config();
  const std::string words = in_words(config, chosen.plan.world_size());
  write_file_atomic(file, text("# ", words, "\n", to_toml(planned_settings(config))));
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
  if (const auto kept = kept_costs(config, context, run))
    keep(config, layout_of(context), corrected(*kept, chosen.plan, review));
  return review;
}

}  // namespace trireme::train
