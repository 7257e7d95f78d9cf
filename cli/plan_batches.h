#pragma once
// `trireme plan --free-batch`: the fastest plan for each global batch.

#include <cstdint>
#include <nlohmann/json.hpp>

#include "trireme/train/planner/batch_choice.h"

namespace trireme::cli {

/// Prints a table of batches, the fastest by the time of a sample, and that another batch trains another
/// model. `configured`: the batch of the configuration.
void print_batches(const train::BatchChoices& found, std::int64_t configured, int world_size);

nlohmann::ordered_json batches_as_json(const train::BatchChoices& found, std::int64_t configured,
                                       int world_size);

}  // namespace trireme::cli
