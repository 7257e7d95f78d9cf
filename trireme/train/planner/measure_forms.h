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
};

/// Costs of every form of the configuration's model whose sizes divide the ranks, on micro-batches of the
/// sizes between which plans lie: a rank's share of the global batch, a quarter and a sixteenth of it. Forms
/// that the model has not are left out. The same on every rank. Collective over the world. Time: about forty
/// steps for each form. Throws InvalidArgument: the whole model cannot be measured; DataError, CommError.
MeasuredForms measure_forms(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                            const FormOptions& options = {});

/// Where measurements of that configuration on so many ranks are kept for this user on this machine:
/// XDG_CACHE_HOME, else .cache of HOME, trireme/costs/, by the digest of all that decides them. None: there
/// is no such folder.
std::optional<std::filesystem::path> kept_measurements(const RunConfig& config, int world_size);

/// The kept measurements; none: there are none, or they cannot be read.
std::optional<MeasuredForms> read_kept(const RunConfig& config, int world_size);

/// Keeps them; a folder that cannot be written is no error.
void keep(const RunConfig& config, int world_size, const MeasuredForms& forms);

}  // namespace trireme::train
