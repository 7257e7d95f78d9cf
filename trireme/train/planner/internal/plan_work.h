#pragma once
// The work of a search for plans, in actions of step programs: computations, transfers and gathers. It is
// counted from the keys of a plan, before its program is made. So a search ends within a limit, at the same
// plan on every machine. Pure.

#include <cstdint>

#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// Of PlanBounds::loose(); of PlanBounds::tight() where its facts are there.
inline constexpr std::int64_t kWorkOfLooseBound = 1, kWorkOfTightBound = 50;
/// Of one more search for a schedule (MadeSchedules), with all orders that it simulates.
inline constexpr std::int64_t kWorkOfScheduleSearch = 300'000;

/// Of plan_step(): at least the actions of the plan's program, and the costs of each layer of the model.
std::int64_t work_of_estimate(const RunConfig& config, std::int64_t layers);

/// Of the order from which PlanBounds::tight() has its facts, of as few micro-batches as it needs.
std::int64_t work_of_facts(const RunConfig& config, std::int64_t layers);

}  // namespace trireme::train
