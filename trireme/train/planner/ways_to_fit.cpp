#include "trireme/train/planner/ways_to_fit.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/estimate/process_memory.h"

namespace trireme::train {
namespace {

/// Of each search, unless the caller's limit is lower.
constexpr std::int64_t kWorkOfWay = 2'000'000;
constexpr int kMostTimesRanks = 8;

const char* const kFiles = "files";

class Ways {
 public:
  Ways(const RunConfig& config, int world_size, const MeasuredForms& measured,
       const PlanSearchOptions& options, std::int64_t smallest_bytes)
      : config_(config),
        world_size_(world_size),
        measured_(measured),
        options_(options),
        smallest_bytes_(smallest_bytes) {
    options_.max_work = options.max_work > 0 ? std::min(options.max_work, kWorkOfWay) : kWorkOfWay;
  }

  std::vector<WayToFit> all() {
    free_keys();
    offload();
    more_ranks();
    return std::move(found_);
  }

 private:
  void free_keys() {
    WayToFit way{.world_size = world_size_};
    for (const auto& [key, value] : planned_settings(config_)) {
      if (key != "offload.optimizer") way.left_out.push_back(key);  // stays with_settings()
    }
    if (!way.left_out.empty()) try_way(with_settings(config_, {}, "the defaults"), std::move(way));
  }

  /// Only the ranks of ZeRO 3 have shards of parameters: the search finds those plans.
  void offload() {
    if (config_.offload.optimizer != "none") return;
    RunConfig changed = config_;
    changed.offload.optimizer = kFiles;
    WayToFit way{.changes = {setting(changed, "offload.optimizer")},
                 .world_size = world_size_,
                 .is_time_known = measured_.front().update_in_files.unit_s > 0};
    try_way(changed, way);
    if (config_.offload.parameters != "none") return;
    way.is_time_known = false;
    changed.offload.parameters = kFiles;
    way.changes.push_back(setting(changed, "offload.parameters"));
    try_way(changed, std::move(way));
  }

  void more_ranks() {
    for (int times = 2; times <= kMostTimesRanks; times *= 2) {
      if (try_way(config_, {.world_size = times * world_size_})) return;
    }
  }

  static PlannedSetting setting(const RunConfig& config, const char* key) {
    return {key, to_toml(find_key(config_key_table(), key).get(config))};
  }

  /// Whether a plan fits.
  bool try_way(const RunConfig& changed, WayToFit way) {
    try {
      PlanSearch search = search_plans(changed, way.world_size, measured_, options_);
      way.fits = !search.plans.empty();
      way.plan = std::move(way.fits ? search.plans.front() : search.too_large.front());
    } catch (const InvalidArgument&) {  // cannot run so
      return false;
    }
    if (!way.fits && way.plan.memory_bytes >= smallest_bytes_) return false;
    found_.push_back(std::move(way));
    return found_.back().fits;
  }

  const RunConfig& config_;
  const int world_size_;
  const MeasuredForms& measured_;
  PlanSearchOptions options_;
  const std::int64_t smallest_bytes_;
  std::vector<WayToFit> found_;
};

}  // namespace

std::vector<WayToFit> ways_to_fit(const RunConfig& config, int world_size, const MeasuredForms& measured,
                                  const PlanSearchOptions& options, const PlanSearch& search) {
  require(search.plans.empty() && !search.too_large.empty(), "a plan fits already");
  if (bytes_without_tensors(measured) >= options.limit_bytes) return {};
  std::vector<WayToFit> ways =
      Ways(config, world_size, measured, options, search.too_large.front().memory_bytes).all();
  std::ranges::stable_partition(ways, &WayToFit::fits);
  return ways;
}

std::int64_t bytes_without_tensors(const MeasuredForms& measured) {
  require(!measured.empty(), "no costs were measured");
  const auto base = static_cast<std::int64_t>(measured.front().base_bytes);
  return base > 0 ? process_bytes({}, base) : 0;
}

std::string in_words(const WayToFit& way, int world_size) {
  std::vector<std::string> words;
  if (way.world_size != world_size) words.push_back(text("-n ", way.world_size));
  if (!way.left_out.empty()) words.push_back(text("without ", join(way.left_out)));
  for (const auto& [key, value] : way.changes) words.push_back(text(key, " = ", value));
  return join(words);
}

}  // namespace trireme::train
