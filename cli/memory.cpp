#include "cli/memory.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/text_table.h"
#include "trireme/base/available_memory.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/base/mesh_axes.h"
#include "trireme/base/text.h"
#include "trireme/comm/device.h"
#include "trireme/comm/tensor_blocks.h"
#include "trireme/comm/vector_math.h"
#include "trireme/data/dataset.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/estimate/memory_forecast.h"
#include "trireme/train/estimate/process_memory.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;
using Settings = std::vector<std::string>;

constexpr std::array kShown = {MemoryKind::kWeights, MemoryKind::kGradients, MemoryKind::kOptimizer,
                               MemoryKind::kActivations};

/// A mode of training, and its memory.
struct Mode {
  Settings settings;  ///< in addition to the configuration
  train::MemoryForecast forecast;

  const MemoryUse& tensors() const { return forecast.largest().at_peak; }
};

/// The memory limit, and the memory of a process besides tensors. A device has tensors only.
struct Room {
  std::uint64_t limit_bytes = 0;
  std::optional<std::int64_t> base_bytes = {};
  std::string device = {};  ///< the device of the tensors: "cuda"; empty: host memory

  std::int64_t bytes_of(const train::ForecastOfRank& rank) const {
    return base_bytes ? train::process_bytes(rank, *base_bytes) : rank.at_peak.total();
  }
  bool takes(const Mode& mode) const {
    return static_cast<std::uint64_t>(bytes_of(mode.forecast.largest())) <= limit_bytes;
  }
};

/// Common alternatives, in the order of their costs.
std::vector<Settings> others(const train::ParallelPlan& plan) {
  const std::string ranks = text(plan.world_size());
  const std::string everything = "train.recompute_layers=[\"*\"]";
  std::vector<Settings> settings = {{"parallel.zero=1"},
                                    {"parallel.zero=2"},
                                    {"parallel.zero=3"},
                                    {everything},
                                    {"parallel.zero=3", everything}};
  if (plan.world_size() == 1) return settings;
  if (plan.pipeline_ranks() > 1 || plan.is_model_parallel()) {
    Settings replicas;
    for (const AxisRow& row : mesh_axes()) {
      if (!row.is_rest) replicas.push_back(text(row.key, "=1"));
    }
    for (const char* zero : {"parallel.zero=0", "parallel.zero=1", "parallel.zero=3"}) {
      settings.push_back(replicas);
      settings.back().emplace_back(zero);
    }
  }
  Settings stages = {"parallel.pipeline=" + ranks};
  const std::int64_t samples = plan.config().train.global_batch;
  if (samples < 4 * plan.world_size()) stages.push_back(text("parallel.microbatches=", samples));
  settings.push_back(stages);
  stages.emplace_back("parallel.recompute=true");
  settings.push_back(stages);
  settings.push_back({"parallel.tensor=" + ranks});
  settings.push_back({"parallel.context=" + ranks});
  return settings;
}

class Forecasts {
 public:
  Forecasts(const Home& home, const MemoryArguments& arguments)
      : home_(home), arguments_(arguments), config_(config_with({})), data_(train::open_data(config_)) {}

  Mode as_configured() const {
    return {.settings = {}, .forecast = measured(train::check_run_config(config_, arguments_.num_ranks))};
  }

  /// None: impossible, or equal to the configuration. `known` has the forecasts so far, the configuration's
  /// first.
  std::optional<Mode> with(const Settings& settings, const std::vector<Mode>& known) const {
    const train::ParallelPlan& configured = known.front().forecast.plan;
    try {
      const train::ParallelPlan plan = train::resolve_plan(config_with(settings), arguments_.num_ranks);
      const auto is_alike = [&] {
        return plan.zero() == configured.zero() && plan.mesh() == configured.mesh() &&
               plan.config().train.recompute_layers == configured.config().train.recompute_layers &&
               plan.config().parallel.recompute == configured.config().parallel.recompute;
      };
      if (is_alike() || (plan.zero() != parallel::ZeroStage::kNone && !plan.is_sharded()))
        return std::nullopt;
      for (const Mode& mode : known) {
        if (auto told = train::forecast_from(mode.forecast, plan, train::weights_memory(plan)))
          return Mode{.settings = settings, .forecast = *std::move(told)};
      }
      return Mode{.settings = settings, .forecast = measured(plan)};
    } catch (const InvalidArgument&) {
      return std::nullopt;
    }
  }

 private:
  train::RunConfig config_with(const Settings& settings) const {
    Settings overrides = arguments_.overrides;
    overrides.insert(overrides.end(), settings.begin(), settings.end());
    return train::load_run_config(arguments_.file, overrides, home_.registry);
  }

  train::MemoryForecast measured(const train::ParallelPlan& plan) const {
    comm::ContextOptions options = plan.config().comm;
    options.backend = "threads";
    std::optional<train::MemoryForecast> forecast;
    const auto measure = [&](comm::Context& context) {
      train::MemoryForecast found = train::measure_memory(plan, context, data_, train::weights_memory(plan));
      if (context.is_main()) forecast = std::move(found);
    };
    comm::run_ranks_as_threads(plan.tensor_ranks() * plan.context_ranks(), measure, options);
    return *std::move(forecast);
  }

  const Home& home_;
  const MemoryArguments& arguments_;
  const train::RunConfig config_;
  const data::DataSource data_;
};

std::uint64_t limit_of(const MemoryArguments& arguments, const train::ParallelPlan& plan) {
  if (arguments.limit_gib > 0) return static_cast<std::uint64_t>(arguments.limit_gib * 0x1p30);
  require(plan.device() == c10::kCPU, "how much memory the device has left is not known here: give --limit");
  return available_memory().bytes / static_cast<std::uint64_t>(arguments.num_ranks);
}

std::string in_words(std::int64_t bytes) {
  return human_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)));
}

std::string name_of(const Settings& settings) {
  return settings.empty() ? "as configured" : join(settings, " ");
}

void print_text(const std::vector<Mode>& modes, const MemoryArguments& arguments, const Room& room) {
  const int ranks = arguments.num_ranks;
  std::cout << "memory of the rank that takes most, of " << ranks << (ranks == 1 ? " rank" : " ranks")
            << ", when most is there\n\n";
  TextTable table{.columns = {Align::kLeft}, .rows = {{"mode"}}};
  std::vector<std::string>& head = table.rows.front();
  for (const MemoryKind kind : kShown) head.emplace_back(trireme::name_of(kind));
  head.emplace_back("tensors");
  if (room.base_bytes) head.emplace_back("process");
  head.emplace_back("fits");
  table.columns.resize(head.size(), Align::kRight);
  for (const Mode& mode : modes) {
    auto& row = table.rows.emplace_back(std::vector<std::string>{name_of(mode.settings)});
    for (const MemoryKind kind : kShown) row.push_back(in_words(mode.tensors()[kind]));
    row.push_back(in_words(mode.tensors().total()));
    if (room.base_bytes) row.push_back(in_words(room.bytes_of(mode.forecast.largest())));
    row.emplace_back(room.takes(mode) ? "yes" : "no");
  }
  print(std::cout, table);
  if (room.base_bytes) {
    std::cout << "\nprocess: tensors, 1/8 of those that ranks do not share, " << in_words(*room.base_bytes)
              << " measured here, and " << in_words(train::kRunBytes);
  }
  if (!room.device.empty()) std::cout << "\ntensors: memory of the device (" << room.device << ")";
  std::cout << "\nfits: into " << human_bytes(room.limit_bytes)
            << (arguments.limit_gib > 0 ? ", as --limit says" : ", a rank's share of what this host has left")
            << std::endl;
}

ordered_json as_json(const MemoryUse& use) {
  ordered_json bytes;
  for (const MemoryKind kind : kShown) bytes[trireme::name_of(kind)] = use[kind];
  bytes["total"] = use.total();
  return bytes;
}

ordered_json as_json(const train::ForecastOfRank& rank, const Room& room) {
  ordered_json bytes = {{"peak_bytes", as_json(rank.at_peak)}, {"shared_bytes", rank.shared_bytes}};
  if (room.base_bytes) bytes["process_bytes"] = room.bytes_of(rank);
  return bytes;
}

void print_json(const std::vector<Mode>& modes, const Room& room) {
  ordered_json rows = ordered_json::array();
  for (const Mode& mode : modes) {
    ordered_json ranks = ordered_json::array();
    for (const train::ForecastOfRank& rank : mode.forecast.ranks) {
      ranks.push_back({{"stages", rank.stages}});
      ranks.back().update(as_json(rank, room));
    }
    ordered_json& row = rows.emplace_back(ordered_json{{"settings", mode.settings}});
    row.update(as_json(mode.forecast.largest(), room));
    row.update(
        {{"fits", room.takes(mode)}, {"cuts", mode.forecast.plan.cuts()}, {"ranks_of_a_pipeline", ranks}});
  }
  ordered_json told = {{"limit_bytes", room.limit_bytes}};
  told["tensors_on"] = room.device.empty() ? "host" : room.device;
  if (room.base_bytes) told["base_bytes"] = *room.base_bytes;
  told["modes"] = rows;
  std::cout << told.dump(2) << std::endl;
}

}  // namespace

int run_memory(const Home& home, const MemoryArguments& arguments) {
  if (keep_freed_memory()) comm::keep_tensor_blocks();  // as in a rank
  comm::settle_vector_math();
  const Forecasts forecasts(home, arguments);
  std::vector<Mode> modes = {forecasts.as_configured()};
  const train::ParallelPlan configured = modes.front().forecast.plan;
  Room room{.limit_bytes = limit_of(arguments, configured)};
  if (configured.device() == c10::kCPU) {
    room.base_bytes = train::measured_base_bytes();
  } else {
    room.device = comm::name_of(configured.device());
  }
  for (const Settings& settings : others(configured)) {
    if (auto mode = forecasts.with(settings, modes)) modes.push_back(*std::move(mode));
  }
  arguments.json ? print_json(modes, room) : print_text(modes, arguments, room);
  return kExitOk;
}

}  // namespace trireme::cli
