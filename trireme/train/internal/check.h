#pragma once
// Checks for a rank that has opened the data and makes the model anyway.

#include <memory>

#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/train/run_config.h"

namespace trireme::train {

/// check_run_config without the model.
void check_run_config(const RunConfig& config, int world_size, const data::DataSource& data);

/// The model of the configuration, tried on one sample of the training data. Throws InvalidArgument that
/// names model and data where the one cannot take the other, DataError.
std::shared_ptr<model::Model> make_checked_model(const RunConfig& config, const data::DataSource& data);

/// A user's own model, tried in the same way. Throws InvalidArgument, DataError.
std::shared_ptr<model::Model> checked_model(std::shared_ptr<model::Model> own, const data::DataSource& data);

/// The learning rate of the configuration, scaled with the batch where it says so. Throws InvalidArgument.
std::unique_ptr<optim::LearningRate> make_learning_rate(const RunConfig& config, std::int64_t total_steps);

}  // namespace trireme::train
