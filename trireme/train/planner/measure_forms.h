#pragma once
// The measurements that a search for plans needs: every form of the model, and the file that keeps them for
// this machine.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/estimate/measurements.h"

namespace trireme::train {

struct FormOptions {
  std::shared_ptr<model::Model> model = nullptr;  ///< null: the configuration's. A custom model is unchanged
  std::shared_ptr<const objective::Objective> objective = nullptr;
  bool is_own_data = false;  ///< the data is not that of the configuration's keys
  /// Whether a part is not that of the configuration: no key tells whether it is the same in the next run,
  /// and costs are not kept.
  bool has_own_parts() const { return model != nullptr || objective != nullptr || is_own_data; }
};

/// Costs of every form of the configuration's model whose sizes divide the ranks, on micro-batches of the
/// sizes between which plans lie: a rank's share of the global batch, a quarter and a sixteenth of it. Forms
/// that the model has not are left out. The overhead is what steps of small micro-batches take beyond their
/// estimate; 0 with a custom model. The same on every rank. Collective over the world. Time: about forty
/// steps for each form, and a second. Throws InvalidArgument: the whole model cannot be measured; DataError,
/// CommError.
MeasuredForms measure_forms(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                            const FormOptions& options = {});

/// Where ranks are, as far as costs depend on it.
struct RankLayout {
  int world_size = 1;
  int ranks_of_host = 1;
};

/// Where measurements of that configuration are kept for this user on this machine: XDG_CACHE_HOME, else
/// .cache of HOME, trireme/costs/, by the digest of what may decide them: processor, ranks, this program, and
/// all keys but those of a plan, a run's name and length, evaluations, checkpoints and the learning rate.
/// None: there is no such folder, or ranks compute on a device, whose name is not known here.
std::optional<std::filesystem::path> kept_measurements(const RunConfig& config, const RankLayout& layout);

/// The kept measurements; none: there are none, or they cannot be read.
std::optional<MeasuredForms> read_kept(const RunConfig& config, const RankLayout& layout);

/// The kept ones of rank 0, or, where it has none or `again`, measured and kept there. A custom model,
/// objective or data set is measured and not kept: no key tells whether it is the same. The same on every
/// rank. Collective over the world. Throws as measure_forms().
MeasuredForms known_or_measured(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                                const FormOptions& options = {}, bool anew = false);

/// Keeps them; a folder that cannot be written is no error.
void keep(const RunConfig& config, const RankLayout& layout, const MeasuredForms& forms);

}  // namespace trireme::train
