#pragma once
// Of `trireme plan` where no plan fits into the memory: by how much, and the cheapest ways to make one fit.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "trireme/train/planner/batch_choice.h"
#include "trireme/train/planner/plan_search.h"
#include "trireme/train/planner/ways_to_fit.h"

namespace trireme::cli {

/// A search, and where none of its plans fits the ways to make one fit.
struct FoundPlans {
  train::PlanSearch search;
  std::vector<train::WayToFit> ways = {};
  std::optional<train::BatchChoices> batches = {};  ///< of --free-batch, in place of the search
  std::int64_t bare_bytes = 0;                      ///< of a rank's process without tensors; 0: not known
};

/// Prints the memory that is missing, and a table of the ways. Not where a plan fits.
void print_ways(const FoundPlans& found, int world_size);

/// "ways_to_fit" of the command's JSON.
nlohmann::ordered_json ways_as_json(const FoundPlans& found, int world_size);

}  // namespace trireme::cli
