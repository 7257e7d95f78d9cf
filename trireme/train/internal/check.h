#pragma once
// check_run_config for a rank that has opened the data and makes the model anyway.

#include "trireme/data/dataset.h"
#include "trireme/train/run_config.h"

namespace trireme::train {

void check_run_config(const RunConfig& config, int world_size, const data::DataSource& data);

}  // namespace trireme::train
