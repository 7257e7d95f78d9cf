#include "trireme/train/planner/measure_forms.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/train/estimate/memory_forecast.h"
#include "trireme/train/planner/internal/plan_space.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

/// Micro-batches of ranks that share `parts` parts of the same samples.
std::vector<std::int64_t> sizes_of(const RunConfig& config, int world_size, std::int64_t parts,
                                   std::int64_t samples_there) {
  const std::int64_t most =
      std::clamp<std::int64_t>(config.train.global_batch * parts / world_size, 1, samples_there);
  std::set<std::int64_t> sizes;
  for (const std::int64_t share : {1, 4, 16}) sizes.insert(std::max<std::int64_t>(most / share, 1));
  return {sizes.begin(), sizes.end()};
}

RunConfig in_form(const RunConfig& config, const ModelForm& form) {
  RunConfig changed = config;
  changed.parallel.tensor = form.tensor;
  changed.parallel.context = form.context;
  changed.parallel.sequence = form.sequence;
  return changed;
}

/// Of everything that decides measurements, and of the machine.
std::string kept_name(const RunConfig& config, int world_size) {
  std::string all = text(processor().model, "\n", processor().instructions, "\n", allowed_cores().size(),
                         " cores\n", world_size, " ranks, ", config.train.global_batch, " samples\n");
  for (const ModelForm& form : model_forms(config, world_size)) {
    try {
      all += model_key(resolve_plan(in_form(config, form), world_size));
    } catch (const InvalidArgument&) {  // a form that the configuration cannot have
    }
  }
  return text(std::hex, XXH3_64bits(all.data(), all.size()));
}

}  // namespace

MeasuredForms measure_forms(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                            const FormOptions& options) {
  const int world_size = context.world_size();
  MeasuredForms forms;
  for (const ModelForm& form : model_forms(config, world_size)) {
    const std::int64_t parts = form.tensor * form.context;
    try {
      const ParallelPlan plan = resolve_plan(in_form(config, form), world_size);
      check_forecast(plan);
      forms.push_back(measure_costs(plan, context, data,
                                    {.samples = sizes_of(config, world_size, parts, data.train->size()),
                                     .other_form = forms.empty() ? nullptr : &forms.front(),
                                     .model = options.model,
                                     .objective = options.objective}));
    } catch (const InvalidArgument&) {
      if (parts == 1 || forms.empty()) throw;
    }
  }
  return forms;
}

std::optional<fs::path> kept_measurements(const RunConfig& config, int world_size) {
  const auto in = [&](const fs::path& cache) {
    return cache / "trireme" / "costs" / (kept_name(config, world_size) + ".json");
  };
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return in(cache);
  const char* home = std::getenv("HOME");
  if (home == nullptr || !fs::path(home).is_absolute()) return std::nullopt;
  return in(fs::path(home) / ".cache");
}

std::optional<MeasuredForms> read_kept(const RunConfig& config, int world_size) {
  const auto file = kept_measurements(config, world_size);
  std::error_code ignored;
  if (!file || !fs::is_regular_file(*file, ignored)) return std::nullopt;
  try {
    return read_measurements(*file);
  } catch (const DataError&) {  // of another version, or cut off: measured again
    return std::nullopt;
  }
}

void keep(const RunConfig& config, int world_size, const MeasuredForms& forms) {
  const auto file = kept_measurements(config, world_size);
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
