#include "trireme/train/planner/measure_forms.h"

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/comm/on_every_rank.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/estimate/estimate.h"
#include "trireme/train/estimate/memory_forecast.h"
#include "trireme/train/estimate/step_trial.h"
#include "trireme/train/parts/internal/offloading.h"
#include "trireme/train/planner/internal/plan_space.h"
#include "trireme/train/planner/planned_keys.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

/// Micro-batch sizes to measure, where `parts` ranks compute on the same samples.
std::vector<std::int64_t> sizes_of(const RunConfig& config, int world_size, std::int64_t parts,
                                   std::int64_t samples_there) {
  const std::int64_t most =
      std::clamp<std::int64_t>(config.train.global_batch * parts / world_size, 1, samples_there);
  std::set<std::int64_t> sizes;
  for (const std::int64_t share : {1, 4, 16}) sizes.insert(std::max<std::int64_t>(most / share, 1));
  return {sizes.begin(), sizes.end()};
}

/// Whether a key affects costs. A new key does, until it is listed here.
bool decides_costs(const ConfigKey& key) {
  constexpr std::array kTables = {"run.", "eval.", "checkpoint.", "lr."};
  constexpr std::array kOthers = {"train.epochs", "train.max_steps", "parallel.plan"};
  return std::ranges::none_of(kTables, [&](const char* table) { return key.name.starts_with(table); }) &&
         std::ranges::find(kOthers, key.name) == kOthers.end() &&
         std::ranges::find(planned_keys(), key.name) == planned_keys().end();
}

/// Identifies the executable, which also contains the code of custom models.
std::string build_in_words() {
  std::error_code unknown;
  const fs::path program = "/proc/self/exe";
  return text(fs::read_symlink(program, unknown).string(), " ", fs::file_size(program, unknown), " bytes, ",
              fs::last_write_time(program, unknown).time_since_epoch().count());
}

/// Identifies the disk of offloaded state, and whether this user can write there.
std::string disk_in_words(const RunConfig& config) {
  const fs::path folder = existing_folder(offload_folder(config));
  struct stat disk {};
  if (::stat(folder.c_str(), &disk) != 0) return "no folder for offloaded state";
  return text("disk ", disk.st_dev, ::access(folder.c_str(), W_OK) == 0 ? ", writable" : ", not writable");
}

std::string kept_name(const RunConfig& config, const RankLayout& layout) {
  const Processor cpu = processor();
  std::string all = text(cpu.model, "\n", cpu.instructions, "\n", allowed_cores().size(), " cores\n",
                         layout.world_size, " ranks, ", layout.ranks_of_host, " on a host\n",
                         build_in_words(), "\n", disk_in_words(config), "\n");
  for (const ConfigKey& key : config_key_table(config)) {
    if (decides_costs(key)) all += text(key.name, " = ", to_toml(key.get(config)), "\n");
  }
  return text(std::hex, XXH3_64bits(all.data(), all.size()));
}

/// Measured minus estimated seconds of a step with `accumulation` micro-batches of the smallest measured
/// size. None: too few samples.
std::optional<double> beyond_estimate(const RunConfig& config, std::int64_t accumulation,
                                      comm::Context& context, const data::DataSource& data,
                                      const Measurements& measured) {
  constexpr double kTrial_s = 0.3;
  const int world_size = context.world_size();
  RunConfig small = before_planning(config, world_size);
  small.train.global_batch = measured.costs.front().samples * accumulation * world_size;
  small.train.accumulation = accumulation;
  small.offload.optimizer = "none";
  small.train = without_ramp(small.train);
  if (small.train.global_batch > data.train->size()) return std::nullopt;
  const ParallelPlan plan = resolve_plan(small, world_size);
  const double taken_s = time_steps(plan, context, data, kTrial_s).step_s;
  return taken_s - estimate(plan, measured, weights_memory(plan, measured)).step_s;
}

/// A line through the results for one and for several micro-batches.
CostLine measured_overhead(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                           const Measurements& measured) {
  constexpr std::int64_t kSeveral = 4;
  try {
    const std::optional<double> one = beyond_estimate(config, 1, context, data, measured);
    if (!one) return {};
    const double several = beyond_estimate(config, kSeveral, context, data, measured).value_or(*one);
    const double unit_s = std::max(0.0, (several - *one) / (kSeveral - 1));
    return {.fixed_s = std::max(0.0, *one - unit_s), .unit_s = unit_s};
  } catch (const InvalidArgument&) {  // on all ranks: the model rejects such small batches
    return {};
  }
}

}  // namespace

MeasuredForms measure_forms(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                            const FormOptions& options) {
  const int world_size = context.world_size();
  MeasuredForms forms;
  for (const ModelForm& form : model_forms(config, world_size)) {
    const std::int64_t parts = form.tensor * form.context;
    try {
      const ParallelPlan plan = resolve_plan(in_form(config, form, world_size), world_size);
      check_forecast(plan);
      forms.push_back(measure_costs(plan, context, data,
                                    {.samples = sizes_of(config, world_size, parts, data.train->size()),
                                     .other_form = forms.empty() ? nullptr : &forms.front(),
                                     .model = options.model,
                                     .objective = options.objective}));
    } catch (const InvalidArgument&) {  // on all ranks: the model does not have this form
      if (parts == 1 || forms.empty()) throw;
    }
  }
  const bool is_whole = model_forms(config, world_size).front() == ModelForm();
  if (is_whole && options.model == nullptr && options.objective == nullptr) {
    const CostLine overhead = measured_overhead(config, context, data, forms.front());
    for (Measurements& each : forms) each.overhead = overhead;
  }
  return forms;
}

MeasuredForms known_or_measured(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                                const FormOptions& options, bool anew) {
  const RankLayout layout = {.world_size = context.world_size(), .ranks_of_host = context.local_world_size()};
  const bool is_kept = !options.has_own_parts();
  std::string kept;
  comm::on_every_rank(context.world(), [&] {
    if (!context.is_main() || !is_kept || anew) return;
    if (const auto found = read_kept(config, layout)) kept = to_text(*found);
  });
  kept = context.world().all_gather_text(kept).front();
  if (!kept.empty()) return parse_measurements(kept, "the costs of rank 0");
  const telemetry::OwnWork work(context.status(), "measuring the costs of plans");
  MeasuredForms measured = measure_forms(config, context, data, options);
  if (context.is_main() && is_kept) keep(config, layout, measured);
  return measured;
}

std::optional<fs::path> kept_measurements(const RunConfig& config, const RankLayout& layout) {
  const auto in = [&](const fs::path& cache) {
    return cache / "trireme" / "costs" / (kept_name(config, layout) + ".json");
  };
  if (resolve_plan(before_planning(config, layout.world_size), layout.world_size).device() != c10::kCPU)
    return std::nullopt;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return in(cache);
  const char* home = std::getenv("HOME");
  if (home == nullptr || !fs::path(home).is_absolute()) return std::nullopt;
  return in(fs::path(home) / ".cache");
}

std::optional<MeasuredForms> read_kept(const RunConfig& config, const RankLayout& layout) {
  const auto file = kept_measurements(config, layout);
  std::error_code ignored;
  if (!file || !fs::is_regular_file(*file, ignored)) return std::nullopt;
  try {
    return read_measurements(*file);
  } catch (const DataError&) {  // another version, or truncated: measured again
    return std::nullopt;
  }
}

void keep(const RunConfig& config, const RankLayout& layout, const MeasuredForms& forms) {
  const auto file = kept_measurements(config, layout);
  if (!file) return;
  std::error_code failed;
  fs::create_directories(file->parent_path(), failed);
  if (failed) return;
  try {
    write_measurements(*file, forms);
  } catch (const DataError&) {  // no cache on this machine: the next plan measures again
  }
}

}  // namespace trireme::train
