#pragma once
// The fault of a list of states, in parts, so that each reader can name its place in its own terms.

#include <optional>
#include <span>
#include <string>

#include "trireme/plan/profile.h"

namespace trireme::plan {

struct StateProblem {
  std::size_t state = 0;
  std::string column;  ///< as the CSV form calls it
  std::string found;
  std::string expected;
};

/// The first figure that violates an invariant of a Profile. `states` has at least one.
std::optional<StateProblem> find_problem(std::span<const State> states);

}  // namespace trireme::plan
