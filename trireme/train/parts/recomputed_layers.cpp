#include "trireme/train/parts/recomputed_layers.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/mesh_axes.h"
#include "trireme/model/checkpointed.h"
#include "trireme/model/skips.h"
#include "trireme/plan/recomputation.h"
#include "trireme/train/estimate/layer_profile.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

bool is_asked_for(const TrainOptions& train) {
  return !train.recompute_layers.empty() || !train.activation_budget.empty();
}

struct Unit {
  std::string_view name;
  double bytes = 1;
};
constexpr std::array kUnits = {
    Unit{"", 1},         Unit{"B", 1},    Unit{"KiB", 0x1p10}, Unit{"MiB", 0x1p20}, Unit{"GiB", 0x1p30},
    Unit{"TiB", 0x1p40}, Unit{"KB", 1e3}, Unit{"MB", 1e6},     Unit{"GB", 1e9},     Unit{"TB", 1e12}};

double bytes_of(const std::string& budget) {
  double number = 0;
  const char* const end = budget.data() + budget.size();
  const auto [behind, error] = std::from_chars(budget.data(), end, number);
  const auto name = std::find_if(behind, end, [](char letter) { return letter != ' '; });
  const auto unit = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& each) {
    return each.name == std::string_view(name, static_cast<std::size_t>(end - name));
  });
  require(error == std::errc() && unit != kUnits.end() && std::isfinite(number) && number > 0,
          "train.activation_budget = \"", budget,
          "\": expected bytes above 0, with a unit, such as \"512MiB\" or \"1.5 GB\"");
  return number * unit->bytes;
}

/// A * matches any text.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() != '*')
    return !name.empty() && pattern.front() == name.front() && matches(pattern.substr(1), name.substr(1));
  for (std::size_t from = 0; from <= name.size(); ++from) {
    if (matches(pattern.substr(1), name.substr(from))) return true;
  }
  return false;
}

std::vector<std::string> names_of(const std::vector<model::Layer>& layers) {
  std::vector<std::string> names;
  for (const model::Layer& layer : layers) names.push_back(layer.name);
  return names;
}

std::string quoted(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(text("'", name, "'"));
  return join(quoted, ", ");
}

std::vector<bool> named_layers(const std::vector<std::string>& patterns,
                               const std::vector<std::string>& names) {
  std::vector<bool> chosen(names.size(), false);
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!matches(pattern, names[i])) continue;
      chosen[i] = found = true;
    }
    require(found, "train.recompute_layers: '", pattern, "' is the name of no layer", suggest(pattern, names),
            "; the layers of the model are ", quoted(names), ", and a * stands for any text");
  }
  return chosen;
}

/// Costs of a micro-batch, measured on rank 0 and the ranks that hold parts of the same layers or sequences.
/// All ranks get them.
std::vector<plan::Recomputable> measured(const ParallelPlan& plan, comm::Context& context,
                                         const std::vector<model::Layer>& chain,
                                         const data::DataSource& data) {
  at::Tensor costs = at::zeros({static_cast<std::int64_t>(chain.size()), 5}, at::kLong);
  const MeshShape::Fold others = axes_that_share_none({Shared::kSequences, Shared::kLayers});
  if (plan.mesh().place(context.rank(), others) == 0) {
    const telemetry::OwnWork work(context.status(), "measuring what the layers of the model keep");
    auto* cost = costs.data_ptr<std::int64_t>();
    for (const plan::Recomputable& layer :
         profile_recomputable(chain, microbatch_of(plan, data).on(device_for(plan, context)))) {
      *cost++ = std::llround(layer.forward_s * 1e9);
      *cost++ = std::llround(layer.inner_bytes);
      *cost++ = std::llround(layer.output_bytes);
      *cost++ = layer.saves_input ? 1 : 0;
      *cost++ = layer.saves_output ? 1 : 0;
    }
  }
  context.world().broadcast(costs, 0);
  std::vector<plan::Recomputable> layers;
  const auto* cost = costs.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < chain.size(); ++i, cost += 5) {
    layers.push_back({.forward_s = static_cast<double>(cost[0]) * 1e-9,
                      .inner_bytes = static_cast<double>(cost[1]),
                      .output_bytes = static_cast<double>(cost[2]),
                      .saves_input = cost[3] != 0,
                      .saves_output = cost[4] != 0});
  }
  return layers;
}

/// The most micro-batches of a stage that are between forward and backward at a time.
int max_live(const std::vector<schedule::Action>& actions, int stage) {
  int live = 0, most = 0;
  for (const schedule::Action& action : actions) {
    if (action.stage != stage) continue;
    if (action.kind == schedule::ActionKind::kForward) most = std::max(most, ++live);
    if (schedule::makes_weight_gradient(action.kind)) --live;
  }
  return most;
}

/// The layers of one rank as chains, and the index of each chain's first layer.
struct Held {
  std::vector<plan::LiveChain> chains;
  std::vector<std::size_t> begins;
};

Held held_by(const ParallelPlan& plan, const std::vector<schedule::Action>& actions,
             const std::vector<plan::Recomputable>& layers) {
  // Without a pipeline, the stages of a rank follow each other in the backward, too.
  if (plan.pipeline_ranks() == 1) return {.chains = {{.layers = layers, .live = 1}}, .begins = {0}};
  Held held;
  const std::vector<int>& cuts = plan.cuts();
  for (std::size_t stage = 0; stage <= cuts.size(); ++stage) {
    const int live = max_live(actions, static_cast<int>(stage));
    if (live == 0) continue;
    const auto begin = stage == 0 ? 0 : static_cast<std::ptrdiff_t>(cuts[stage - 1]);
    const auto end = stage == cuts.size() ? std::ssize(layers) : static_cast<std::ptrdiff_t>(cuts[stage]);
    held.chains.push_back({.layers = {layers.begin() + begin, layers.begin() + end}, .live = live});
    held.begins.push_back(static_cast<std::size_t>(begin));
  }
  return held;
}

std::string bytes_in_words(double bytes) { return human_bytes(static_cast<std::uint64_t>(std::ceil(bytes))); }

/// The choices of all ranks, computed identically on every rank.
RecomputedLayers within_budget(const ParallelPlan& plan, const std::vector<plan::Recomputable>& layers) {
  const std::string& text_of_budget = plan.config().train.activation_budget;
  const double budget = bytes_of(text_of_budget);
  RecomputedLayers chosen{.layers = std::vector<bool>(layers.size(), false), .why = {}};
  double peak = 0, plain_peak = 0, added_s = 0;
  for (const std::vector<schedule::Action>& actions : plan.program().ranks) {
    const Held held = held_by(plan, actions, layers);
    const plan::Recomputation found = plan::choose_recomputed(held.chains, budget);
    require(found.peak_bytes <= budget, "train.activation_budget = \"", text_of_budget,
            "\": the least that micro-batches of ", plan.samples_of_microbatch(), " samples need is ",
            static_cast<std::uint64_t>(found.peak_bytes), " bytes (", bytes_in_words(found.peak_bytes),
            "), with every layer recomputed that it helps; give at least that, or smaller micro-batches "
            "(train.accumulation, parallel.microbatches)");
    std::vector<std::vector<bool>> none;
    for (std::size_t c = 0; c < held.chains.size(); ++c) {
      none.emplace_back(held.chains[c].layers.size(), false);
      for (std::size_t i = 0; i < none.back().size(); ++i) {
        if (found.recomputed[c][i]) chosen.layers[held.begins[c] + i] = true;
      }
    }
    peak = std::max(peak, found.peak_bytes);
    plain_peak = std::max(plain_peak, plan::cost_of(held.chains, std::move(none)).peak_bytes);
    added_s = std::max(added_s, found.added_s);
  }
  chosen.why = text("; predicted: activations of ", bytes_in_words(peak), " at most on a rank, ",
                    bytes_in_words(plain_peak), " without, and ", std::round(added_s * 1e6) / 1e3,
                    " ms more for a micro-batch");
  return chosen;
}

/// The whole model as one layer, which runs the chain.
void run_chain(model::Layer& whole, const ParallelPlan& plan, std::vector<model::Layer> chain) {
  whole.forward = [forward = model::forward_of_chain(std::move(chain)), precision = plan.precision(),
                   device = plan.device()](const Fields& inputs) {
    const PrecisionScope scope(precision, device);
    return forward(inputs);
  };
}

void say(const comm::Context& context, const std::vector<std::string>& names,
         const RecomputedLayers& chosen) {
  std::vector<std::string> recomputed;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (chosen.layers[i]) recomputed.push_back(names[i]);
  }
  context.log().info("recomputed in the backward: ", recomputed.size(), " of ", names.size(), " layers",
                     recomputed.empty() ? "" : " (", quoted(recomputed), recomputed.empty() ? "" : ")",
                     chosen.why);
}

}  // namespace

void check_recomputation(const RunConfig& config) {
  const TrainOptions& train = config.train;
  if (train.activation_budget.empty()) return;
  bytes_of(train.activation_budget);
  require(train.recompute_layers.empty(),
          "train.activation_budget chooses the layers that are recomputed, and train.recompute_layers names "
          "them; leave one of the two out");
  require(!config.parallel.recompute,
          "train.activation_budget chooses layers, and parallel.recompute = true recomputes whole stages; "
          "leave one of the two out");
}

void check_recomputed_layers(const RunConfig& config, model::Model& model) {
  if (!is_asked_for(config.train)) return;
  const std::vector<model::Layer> layers = model.layers();
  require(!layers.empty(), "the model of type ", model.name(),
          " has no layers() of which some could be recomputed; leave train.recompute_layers and "
          "train.activation_budget out");
  named_layers(config.train.recompute_layers, names_of(layers));
}

RecomputedLayers recomputed_layers(const ParallelPlan& plan, const std::vector<std::string>& names,
                                   const std::function<std::vector<plan::Recomputable>()>& measure) {
  const TrainOptions& train = plan.config().train;
  if (!train.activation_budget.empty()) return within_budget(plan, measure());
  return {.layers = named_layers(train.recompute_layers, names), .why = {}};
}

namespace {

class Recomputation final : public StepPart {
 public:
  explicit Recomputation(const PartSetup& setup)
      : context_(setup.context), model_(setup.model), data_(setup.data) {}

  /// Checkpoints the layers of the plan, and logs them on rank 0. For a budget, rank 0 and the ranks with
  /// parts of the same layers measure them on a micro-batch.
  void configure(PipelineSetup& setup) override {
    const ParallelPlan& plan = setup.plan;
    std::vector<model::Layer> chain = model_.layers();
    const std::vector<std::string> names = names_of(chain);
    const RecomputedLayers chosen = recomputed_layers(plan, names, [&] {
      return measured(plan, context_, layers_in(plan.precision(), model_, plan.device()), data_);
    });
    if (context_.is_main()) say(context_, names, chosen);
    std::vector<model::Layer>& parts = plan.is_cut() ? setup.layers : chain;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (chosen.layers[i]) parts[i] = model::checkpointed(std::move(parts[i]));
    }
    if (!plan.is_cut()) run_chain(setup.layers.front(), plan, std::move(chain));
  }

 private:
  comm::Context& context_;
  model::Model& model_;
  const data::DataSource& data_;
};

}  // namespace

std::unique_ptr<StepPart> make_recomputation(const PartSetup& setup) {
  return is_asked_for(setup.plan.config().train) ? std::make_unique<Recomputation>(setup) : nullptr;
}

}  // namespace trireme::train
