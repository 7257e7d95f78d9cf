#pragma once
// The configuration keys that a planner decides: how ranks compute a step. None of them changes the
// optimizer, the batch or the data, so every plan trains the same model. Differences are rounding, and the
// statistics of batch normalization, which are those of a micro-batch. Values.

#include <string>
#include <utility>
#include <vector>

#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// Names, in the order of the key table.
const std::vector<std::string>& planned_keys();

/// A key and its value as TOML.
using PlannedSetting = std::pair<std::string, std::string>;

/// The planned keys of `config` that are not at their defaults.
std::vector<PlannedSetting> planned_settings(const RunConfig& config);

/// `config` with these settings and all other planned keys at their defaults, except offload.optimizer, which
/// stays. Throws InvalidArgument: a key that is not planned, or a value that its key does not allow. `name`
/// is the source's name in messages.
RunConfig with_settings(const RunConfig& config, const std::vector<PlannedSetting>& settings,
                        const std::string& name);

/// The configuration for checks and measurements before planning: `config` with the planned keys at their
/// defaults, and a batch that has a sample for each rank from the first step on.
RunConfig before_planning(const RunConfig& config, int world_size);

/// The planned keys of a TOML text of tables such as [parallel], in its order. Throws InvalidArgument with
/// "NAME:LINE: ..." for everything that is wrong in it, and for a key that is not planned: a plan of a third
/// party decides no files.
std::vector<PlannedSetting> parse_settings(const std::string& content, const std::string& name);

/// "[parallel]" and "[train]" with these settings, as `trireme train --plan` reads them.
std::string to_toml(const std::vector<PlannedSetting>& settings);

}  // namespace trireme::train
