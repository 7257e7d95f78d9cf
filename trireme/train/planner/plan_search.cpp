#include "trireme/train/planner/plan_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/train/estimate/process_memory.h"
#include "trireme/train/parts/recomputed_layers.h"
#include "trireme/train/plan/internal/plan_maker.h"
#include "trireme/train/planner/internal/plan_bound.h"
#include "trireme/train/planner/internal/plan_space.h"
#include "trireme/train/planner/internal/plan_work.h"

namespace trireme::train {
namespace {

/// A limit of work allows at least this many plans.
constexpr std::int64_t kPlansOfLimit = 8;
/// Steps of the search for layers to recompute: each halves the interval of budgets.
constexpr int kBudgets = 8;

/// If no plan fits: number of estimated plans among those that the memory bound excludes, smallest first.
constexpr std::size_t kSmallest = 4;
/// Of the fastest plans, those that are also estimated with each codec.
constexpr std::size_t kCompressed = 5;

const char* const kNotMeasured =
    "the costs have no layers in as many parts as parallel.tensor and parallel.context ask for; leave these "
    "keys out, or measure again with this configuration";
const char* const kNoChoice =
    "no plan has these parallel.data, parallel.pipeline, parallel.microbatches and train.accumulation with "
    "this "
    "train.global_batch and as many layers; leave some of these keys out";

/// A plan without an estimate yet.
struct OpenChoice {
  PlanChoice choice;
  const Measurements* costs = nullptr;
  PlanBound bound;
  bool is_tight = false;
};

/// Whether plans may keep the optimizer's state in files: their time is known, and memory is limited.
bool may_offload(const RunConfig& config, const MeasuredForms& measured, std::int64_t limit_bytes) {
  return limit_bytes > 0 && config.offload.optimizer == "none" &&
         std::ranges::any_of(measured,
                             [](const Measurements& form) { return form.update_in_files.unit_s > 0; });
}

class Search {
 public:
  Search(const RunConfig& config, int world_size, const MeasuredForms& measured,
         const PlanSearchOptions& options)
      : config_(config),
        world_size_(world_size),
        measured_(measured),
        options_(options),
        bounds_(config, world_size, options.limit_bytes, schedules_) {
    found_.limit_bytes = options.limit_bytes;
  }

  PlanSearch run() {
    open_choices();
    while (!open_.empty()) {
      const std::size_t next = open_.begin()->second;
      if (open_.begin()->first > options_.alternatives * best_s_) {  // and so are all that follow
        found_.bounded += std::ssize(open_);
        break;
      }
      if (has_any() && is_over()) break;
      open_.erase(open_.begin());
      if (choices_[next].is_tight)
        consider_open(next);
      else
        tighten(next);
    }
    if (found_.plans.empty()) consider_smallest();
    if (!has_any() && least_left_out_) {
      has_limit_ = false;
      consider(with_choice(config_, choices_[least_left_out_->second].choice), {});
    }
    require(!found_.plans.empty() || !found_.too_large.empty(), "no plan runs on ", world_size_,
            world_size_ == 1 ? " rank: " : " ranks: ",
            !first_rejection_.empty() ? first_rejection_.c_str()
            : lacks_costs_            ? kNotMeasured
                                      : kNoChoice);
    std::ranges::stable_sort(found_.plans, {}, &PlannedStep::step_s);
    prefer_simple();
    std::ranges::stable_sort(found_.too_large, {}, &PlannedStep::memory_bytes);
    if (!found_.plans.empty()) compress_fastest();
    return std::move(found_);
  }

 private:
  void open_choices() {
    for (const ModelForm& form : model_forms(config_, world_size_)) {
      const Measurements* costs = costs_of(form);
      if (costs == nullptr) continue;
      const SpaceOptions space{.world_size = world_size_,
                               .ranks_of_host = costs->ranks_of_host,
                               .layers = std::ssize(costs->costs.front().layers) - 1};
      for (PlanChoice& choice : plan_choices(config_, form, space)) {
        const PlanBound bound = bounds_.loose(choice, *costs);
        found_.work += kWorkOfLooseBound;
        choices_.push_back({.choice = std::move(choice), .costs = costs, .bound = bound});
        add(choices_.size() - 1);
      }
    }
  }

  /// Queues a choice in the order of its time bound; ties keep the order of the space.
  void add(std::size_t index) {
    const PlanBound& bound = choices_[index].bound;
    if (options_.limit_bytes > 0 && bound.memory_bytes > static_cast<double>(options_.limit_bytes)) {
      ++found_.bounded;
      smallest_.emplace(bound.memory_bytes, index);
      if (smallest_.size() > kSmallest) smallest_.erase(std::prev(smallest_.end()));
    } else {
      open_.emplace(bound.step_s, index);
    }
  }

  void tighten(std::size_t index) {
    OpenChoice& open = choices_[index];
    const std::int64_t work = bounds_.work_of_tight(open.choice, *open.costs);
    if (!begin_work(work)) return leave_out(work, index);
    open.bound = bounds_.tight(open.choice, *open.costs);
    open.is_tight = true;
    add(index);
  }

  void consider_open(std::size_t index) {
    const RunConfig config = with_choice(config_, choices_[index].choice);
    const std::int64_t work = work_of(config);
    if (!is_allowed(work)) return leave_out(work, index);
    consider(config, choices_[index].bound);
  }

  void leave_out(std::int64_t work, std::size_t index) {
    found_.is_complete = false;
    const std::pair each(work, index);
    least_left_out_ = least_left_out_ ? std::min(*least_left_out_, each) : each;
  }

  bool has_any() const { return !found_.plans.empty() || !found_.too_large.empty(); }

  void consider_smallest() {
    for (const auto& [bytes, index] : smallest_) {
      if (!found_.too_large.empty() && is_over()) return;
      --found_.bounded;
      consider(with_choice(config_, choices_[index].choice), {});
    }
  }

  /// Null: this form was not measured, or is impossible.
  const Measurements* costs_of(const ModelForm& form) {
    try {
      const std::string key =
          model_key(make_plan(in_form(config_, form, world_size_), world_size_, std::nullopt));
      const auto costs = std::ranges::find(measured_, key, &Measurements::model);
      lacks_costs_ = lacks_costs_ || costs == measured_.end();
      return costs == measured_.end() ? nullptr : &*costs;
    } catch (const InvalidArgument& reason) {
      reject(reason);
      return nullptr;
    }
  }

  /// Records in the result that the search ended early.
  bool is_over() {
    if (!is_late_ && options_.is_over && options_.is_over()) is_late_ = true;
    if (is_late_) found_.is_complete = false;
    return is_late_;
  }

  /// Work of an estimate.
  std::int64_t work_of(const RunConfig& config) const {
    const ParallelOptions& parallel = config.parallel;
    const ScheduleSize size{.ranks = static_cast<int>(parallel.pipeline),
                            .chunks = static_cast<int>(parallel.chunks),
                            .microbatches = static_cast<int>(parallel.microbatches)};
    const bool searches = parallel.pipeline > 1 && schedules_.has_to_search(parallel.schedule, size);
    return work_of_estimate(config, num_layers()) + (searches ? kWorkOfScheduleSearch : 0);
  }

  std::int64_t num_layers() const { return std::ssize(measured_.front().costs.front().layers); }

  bool is_allowed(std::int64_t work) const {
    if (options_.max_work == 0 || !has_limit_) return true;
    return work <= options_.max_work / kPlansOfLimit && found_.work + work <= options_.max_work;
  }

  /// False: the plan is left out, and the result is marked as incomplete.
  bool begin_work(std::int64_t work) {
    if (!is_allowed(work)) return found_.is_complete = false;
    found_.work += work;
    return true;
  }

  void reject(const InvalidArgument& reason) {
    if (first_rejection_.empty()) first_rejection_ = reason.what();
  }

  bool fits(const PlannedStep& plan) const {
    return options_.limit_bytes == 0 || plan.memory_bytes <= options_.limit_bytes;
  }

  /// The plan; if it does not fit without recomputation, also with the optimizer's state in files.
  void consider(const RunConfig& config, const PlanBound& bound) {
    const std::int64_t rejected = found_.rejected;
    if (consider_as_it_is(config, bound) || found_.rejected > rejected) return;
    if (!may_offload(config_, measured_, options_.limit_bytes)) return;
    RunConfig offloaded = config;
    offloaded.offload.optimizer = "files";
    consider_as_it_is(offloaded, bound);
  }

  /// Whether it fits without recomputed layers.
  bool consider_as_it_is(const RunConfig& config, const PlanBound& bound) {
    if (bound.recomputes && may_recompute()) {
      if (std::optional<PlannedStep> smaller = recomputed_to_fit(config, options_.limit_bytes)) {
        take(*std::move(smaller));
        return false;
      }
    }
    std::optional<PlannedStep> plain = estimate_of(config);
    if (!plain) return false;
    const bool does_fit = fits(*plain);
    if (!does_fit && may_recompute()) {
      const auto rank = static_cast<std::size_t>(plain->memory_rank);
      const std::int64_t most = plain->ranks[rank].memory.at_peak[MemoryKind::kActivations];
      std::optional<PlannedStep> smaller = recomputed_to_fit(plain->config, most);
      if (smaller && smaller->memory_bytes < plain->memory_bytes) take(*std::move(smaller));
    }
    take(*std::move(plain));
    return does_fit;
  }

  /// False if the configuration already chooses the layers.
  bool may_recompute() const {
    const TrainOptions& train = config_.train;
    return train.recompute_layers.empty() && train.activation_budget.empty() && !config_.parallel.recompute;
  }

  void take(PlannedStep plan) {
    if (fits(plan)) {
      best_s_ = std::min(best_s_, plan.step_s);
      found_.plans.push_back(std::move(plan));
    } else {
      found_.too_large.push_back(std::move(plan));
    }
  }

  /// Among equally fast plans, prefers the one with the fewest keys, then with the least memory.
  void prefer_simple() {
    const auto is_as_fast = [this](const PlannedStep& plan) {
      return plan.step_s <= found_.plans.front().step_s * (1 + kAsFast);
    };
    const auto end = std::ranges::find_if_not(found_.plans, is_as_fast);
    if (end == found_.plans.begin()) return;
    const auto simplest =
        std::min_element(found_.plans.begin(), end, [](const PlannedStep& a, const PlannedStep& b) {
          return std::pair(a.settings.size(), a.memory_bytes) < std::pair(b.settings.size(), b.memory_bytes);
        });
    std::rotate(found_.plans.begin(), simplest, simplest + 1);
  }

  /// The fastest plan for each codec that was measured, of the few fastest plans, if it is faster than all.
  void compress_fastest() {
    if (config_.parallel.compression != "none") return;
    std::vector<RunConfig> fastest;
    for (const PlannedStep& plan : std::span(found_.plans).first(std::min(kCompressed, found_.plans.size())))
      fastest.push_back(plan.config);
    for (const CodecCost& each : measured_.front().exchanges.codecs) {
      std::optional<PlannedStep> best;
      for (RunConfig config : fastest) {
        config.parallel.compression = each.codec;
        std::optional<PlannedStep> tried = estimate_of(config);
        if (!tried || !fits(*tried)) continue;
        tried->settings.emplace_back("parallel.compression", text('"', each.codec, '"'));
        if (!best || tried->step_s < best->step_s) best = std::move(tried);
      }
      if (best && best->step_s * (1 + kAsFast) < found_.plans.front().step_s)
        found_.compressed.push_back(*std::move(best));
    }
    std::ranges::stable_sort(found_.compressed, {}, &PlannedStep::step_s);
  }

  /// The plan did not choose the key.
  static void leave_to_configuration(PlannedStep& step, const std::string& key) {
    std::erase_if(step.settings, [&](const PlannedSetting& each) { return each.first == key; });
  }

  /// None: the plan cannot run, or exceeds the limit of work.
  std::optional<PlannedStep> estimate_of(const RunConfig& config) {
    if (!begin_work(work_of(config))) return std::nullopt;
    try {
      PlannedStep step = plan_step(config, world_size_, measured_, schedules_);
      if (config_.offload.optimizer != "none") leave_to_configuration(step, "offload.optimizer");
      ++found_.estimated;
      return step;
    } catch (const InvalidArgument& reason) {
      ++found_.rejected;
      reject(reason);
      return std::nullopt;
    }
  }

  /// Recomputes the layers that cost the least time for the missing memory, or all layers if nothing else is
  /// enough. `max_bytes` of activations are too many. None: the plan cannot run.
  std::optional<PlannedStep> recomputed_to_fit(const RunConfig& plain, std::int64_t max_bytes) {
    RunConfig all = plain;
    all.train.recompute_layers = {"*"};
    std::optional<PlannedStep> least = estimate_of(all);
    if (!least) return std::nullopt;
    if (!fits(*least)) return least;
    std::optional<PlannedStep> best = least;
    double too_small = 0;
    auto too_large = static_cast<double>(max_bytes);
    for (int i = 0; i < kBudgets && !is_over() && begin_work(work_of(plain)); ++i) {
      const double budget = (too_small + too_large) / 2;
      const std::optional<RunConfig> config = within_budget(plain, budget);
      const std::optional<PlannedStep> tried = config ? estimate_of(*config) : std::nullopt;
      if (!tried) {
        too_small = budget;
      } else if (!fits(*tried)) {
        too_large = budget;
      } else {
        too_small = budget;
        if (tried->step_s < best->step_s) best = tried;
      }
    }
    return best;
  }

  /// Names the layers to recompute for a budget. None: no choice reaches it.
  std::optional<RunConfig> within_budget(RunConfig config, double budget_bytes) {
    config.train.activation_budget = text(static_cast<std::int64_t>(budget_bytes));
    try {
      const ParallelPlan open = make_plan(config, world_size_, std::nullopt, &schedules_);
      const ModelUse model = model_at(form_of(measured_, open), open.samples_of_microbatch());
      const ParallelPlan plan = cut_by_time(open, model);
      std::vector<std::string> names;
      std::vector<plan::Recomputable> costs;
      for (std::size_t i = 0; i + 1 < model.layers.size(); ++i) {
        names.push_back(model.layers[i].name);
        costs.push_back(model.layers[i].memory.kept);
      }
      const std::vector<bool> chosen = recomputed_layers(plan, names, [&] { return costs; }).layers;
      config.train.activation_budget = "";
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (chosen[i]) config.train.recompute_layers.push_back(names[i]);
      }
      return config;
    } catch (const InvalidArgument&) {
      return std::nullopt;
    }
  }

  const RunConfig& config_;
  const int world_size_;
  const MeasuredForms& measured_;
  const PlanSearchOptions& options_;
  MadeSchedules schedules_;
  PlanBounds bounds_;
  std::vector<OpenChoice> choices_;
  std::set<std::pair<double, std::size_t>> open_, smallest_;  ///< by seconds; by bytes
  PlanSearch found_;
  /// The plan beyond the limit of work that needs the least work: (work, index).
  std::optional<std::pair<std::int64_t, std::size_t>> least_left_out_;
  bool has_limit_ = true, is_late_ = false;
  double best_s_ = std::numeric_limits<double>::infinity();
  std::string first_rejection_;
  bool lacks_costs_ = false;  ///< of a form of the model
};

}  // namespace

std::int64_t memory_of_rank(const ForecastOfRank& rank, const Measurements& measured) {
  return measured.base_bytes > 0 ? process_bytes(rank, static_cast<std::int64_t>(measured.base_bytes))
                                 : rank.at_peak.total();
}

const EstimateOfRank& PlannedStep::busiest() const {
  return *std::ranges::max_element(
      ranks, {}, [](const EstimateOfRank& rank) { return rank.seconds.total() - rank.seconds.idle; });
}

const PlannedStep* PlanSearch::data_parallel() const {
  const auto found = std::ranges::find_if(plans, [](const PlannedStep& each) {
    const ParallelOptions& parallel = each.config.parallel;
    return parallel.pipeline == 1 && parallel.tensor == 1 && parallel.context == 1 && parallel.zero == 0;
  });
  return found == plans.end() ? nullptr : &*found;
}

std::vector<const PlannedStep*> PlanSearch::frontier() const {
  std::vector<const PlannedStep*> all;
  for (const PlannedStep& plan : plans) all.push_back(&plan);
  for (const PlannedStep& plan : too_large) all.push_back(&plan);
  std::ranges::stable_sort(all, {}, [](const PlannedStep* plan) { return plan->step_s; });
  std::vector<const PlannedStep*> frontier;
  for (const PlannedStep* plan : all) {
    if (frontier.empty() || plan->memory_bytes < frontier.back()->memory_bytes) frontier.push_back(plan);
  }
  return frontier;
}

PlannedStep plan_step(const RunConfig& config, int world_size, const MeasuredForms& measured) {
  MadeSchedules schedules;
  return plan_step(config, world_size, measured, schedules);
}

PlannedStep plan_step(const RunConfig& config, int world_size, const MeasuredForms& measured,
                      MadeSchedules& schedules) {
  const ParallelPlan plan = make_plan(config, world_size, std::nullopt, &schedules);
  require(!plan.asynchronous(), "a planner compares steps, and the stages of parallel.schedule = \"",
          config.parallel.schedule, "\" update at different times; use a schedule with a flush");
  const Measurements& costs = form_of(measured, plan);
  Estimate found = estimate(plan, costs, weights_memory(plan, costs));
  PlannedStep step{.config = config, .settings = {}, .step_s = found.step_s, .ranks = std::move(found.ranks)};
  ParallelOptions& parallel = step.config.parallel;
  if (parallel.pipeline > 1) parallel.cuts.assign(found.plan.cuts().begin(), found.plan.cuts().end());
  parallel.data = plan.num_replicas();
  parallel.planned_step_s = std::round(1e7 * found.step_s) / 1e7;
  step.settings = planned_settings(step.config);
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
    const std::int64_t bytes = memory_of_rank(step.ranks[rank].memory, costs);
    if (bytes <= step.memory_bytes) continue;
    step.memory_bytes = bytes;
    step.memory_rank = static_cast<int>(rank);
  }
  return step;
}

PlanSearch search_plans(const RunConfig& config, int world_size, const MeasuredForms& measured,
                        const PlanSearchOptions& options) {
  require(config.parallel.pipeline == 1 || !updates_under_way(config),
          "a planner compares steps, and the stages of parallel.schedule = \"", config.parallel.schedule,
          "\" update at different times; use a schedule with a flush");
  return Search(config, world_size, measured, options).run();
}

}  // namespace trireme::train
