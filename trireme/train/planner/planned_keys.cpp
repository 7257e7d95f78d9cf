#include "trireme/train/planner/planned_keys.h"

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/base/text.h"
#include "trireme/base/toml.h"
#include "trireme/base/toml_nesting.h"
#include "trireme/base/toml_text.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/config/internal/config_keys.h"

namespace trireme::train {
namespace {

/// A plan may offload state, and never takes back what the configuration offloads.
const char* const kOnlyAdded = "offload.optimizer";

void check_planned(const std::string& key, const std::string& name) {
  require(std::ranges::find(planned_keys(), key) != planned_keys().end(), name, ": the key '", printable(key),
          "' is not one that a planner decides: ", join(planned_keys()));
}

}  // namespace

const std::vector<std::string>& planned_keys() {
  static const std::vector<std::string> kKeys = {
      "train.accumulation", "train.recompute_layers", "parallel.data",           "parallel.pipeline",
      "parallel.tensor",    "parallel.sequence",      "parallel.context",        "parallel.schedule",
      "parallel.chunks",    "parallel.microbatches",  "parallel.cuts",           "parallel.planned_step_s",
      "parallel.recompute", "parallel.zero",          "parallel.keep_gradients", "parallel.shard_ranks",
      "offload.optimizer"};
  return kKeys;
}

std::vector<PlannedSetting> planned_settings(const RunConfig& config) {
  const RunConfig defaults;
  std::vector<PlannedSetting> settings;
  for (const std::string& name : planned_keys()) {
    const ConfigKey& key = find_key(config_key_table(), name);
    std::string value = to_toml(key.get(config));
    if (value != to_toml(key.get(defaults))) settings.emplace_back(name, std::move(value));
  }
  return settings;
}

RunConfig with_settings(const RunConfig& config, const std::vector<PlannedSetting>& settings,
                        const std::string& name) {
  std::string content;
  for (const auto& [key, value] : settings) {
    check_planned(key, name);
    content += text(key, " = ", value, "\n");
  }
  const RunConfig defaults, given = parse_run_config(content, name);
  RunConfig changed = config;
  for (const std::string& each : planned_keys()) {
    const ConfigKey& key = find_key(config_key_table(), each);
    const bool is_given = std::ranges::find(settings, each, &PlannedSetting::first) != settings.end();
    if (!is_given && each == kOnlyAdded) continue;
    key.set(changed, key.get(is_given ? given : defaults));
    if (is_given && changed.named) changed.named->insert(each);
  }
  return changed;
}

RunConfig before_planning(const RunConfig& config, int world_size) {
  RunConfig changed = with_settings(config, {}, "the defaults");
  changed.train.global_batch = std::max<std::int64_t>(config.train.global_batch, world_size);
  changed.train = without_ramp(changed.train);
  return changed;
}

std::vector<PlannedSetting> parse_settings(const std::string& content, const std::string& name) {
  if (const auto line = line_of_deep_key(content))
    throw InvalidArgument(text(name, ":", *line, ": a key of more than ", kMaxKeyParts, " parts"));
  std::vector<PlannedSetting> settings;
  try {
    const toml::table tables = toml::parse(content, name);
    for (const auto& [table, node] : tables) {
      require(node.is_table(), name, ": expected tables such as [parallel], found the key '",
              printable(table.str()), "'; trireme plan --toml prints a plan");
      for (const auto& [key, value] : *node.as_table()) {
        settings.emplace_back(text(table.str(), ".", key.str()), toml_text(value));
        check_planned(settings.back().first, name);
      }
    }
  } catch (const toml::parse_error& error) {
    throw InvalidArgument(text(name, ":", error.source().begin.line, ": ", error.description()));
  }
  return settings;
}

std::string to_toml(const std::vector<PlannedSetting>& settings) {
  std::map<std::string, std::string> tables;
  for (const auto& [key, value] : settings) {
    const std::size_t dot = key.find('.');
    tables[key.substr(0, dot)] += text(key.substr(dot + 1), " = ", value, "\n");
  }
  std::string all;
  for (const auto& [table, keys] : tables) all += text(all.empty() ? "" : "\n", "[", table, "]\n", keys);
  return all;
}

}  // namespace trireme::train
