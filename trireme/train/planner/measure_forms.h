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
  /// Whether a part is not that of the configuration. Its identity has no key, so measured costs are not
  /// cached.
  bool has_own_parts() const { return model != nullptr || objective != nullptr || is_own_data; }
};

/// Costs of every form of the configuration's model whose sizes divide the ranks. Micro-batches have the
/// sizes between which plans are: a rank's share of the global batch, a quarter and a sixteenth of it. Forms
/// that the model does not have are left out. The overhead is the time of steps of small micro-batches beyond
/// their estimate; 0 with a custom model. The same on every rank. Collective over the world. Time: about
/// forty steps for each form, and a second. Throws InvalidArgument: the whole model cannot be measured;
/// DataError, CommError.
MeasuredForms measure_forms(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                            const FormOptions& options = {});

/// Where ranks are, as far as costs depend on it.
struct RankLayout {
  int world_size = 1;
  int ranks_of_host = 1;
};

/// Path of the cached measurements of that configuration for this user on this machine: XDG_CACHE_HOME, else
/// .cache of HOME, trireme/costs/, by a digest. The digest is of processor, ranks, this program, and the
/// keys. It leaves out keys of a plan, a run's name and length, evaluations, checkpoints and the learning
/// rate. None: there is no such folder, or ranks compute on a device, whose name is not known here.
std::optional<std::filesystem::path> kept_measurements(const RunConfig& config, const RankLayout& layout);

/// The kept measurements; none: there are none, or they cannot be read.
std::optional<MeasuredForms> read_kept(const RunConfig& config, const RankLayout& layout);

/// The cached measurements of rank 0, or, where it has none or `again`, new ones, which are cached.
/// Measurements of a custom model, objective or data set are not cached, because no key identifies it. The
/// same on every rank. Collective over the world. Throws as measure_forms().
MeasuredForms known_or_measured(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                                const FormOptions& options = {}, bool anew = false);

/// Keeps them; a folder that cannot be written is no error.
void keep(const RunConfig& config, const RankLayout& layout, const MeasuredForms& forms);

}  // namespace trireme::train
