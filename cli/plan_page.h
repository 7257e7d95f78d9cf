#pragma once
// The result of a search for plans as a page: time against memory as a chart, and all plans in a table.

#include <string>

#include "trireme/train/planner/plan_search.h"

namespace trireme::cli {

/// HTML without references to anything outside it. `title` names the configuration. Pure.
std::string plan_page(const train::PlanSearch& search, const std::string& title, int world_size);

}  // namespace trireme::cli
