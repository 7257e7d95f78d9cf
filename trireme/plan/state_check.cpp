#include "trireme/plan/internal/state_check.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "trireme/base/text.h"

namespace trireme::plan {
namespace {

struct Column {
  const char* name;
  double State::*value;
};

/// The three cumulative columns come first. The last one belongs to a single cut.
constexpr Column kColumns[] = {{"cum_compute_s", &State::compute_s},
                               {"cum_activation_bytes", &State::activation_bytes},
                               {"cum_parameter_bytes", &State::parameter_bytes},
                               {"output_activation_bytes", &State::output_bytes}};
constexpr std::span kCumulative(kColumns, 3);

/// Sums of the same layers in another order differ in the last bits.
constexpr double kRounding = 1e-9;

std::optional<StateProblem> problem_of_numbers(std::span<const State> states, std::size_t at) {
  for (const Column& column : kColumns) {
    const double value = states[at].*column.value;
    if (!std::isfinite(value) || value < 0)
      return StateProblem{at, column.name, text(value), "a finite number, 0 or more"};
  }
  return std::nullopt;
}

std::optional<StateProblem> problem_of_predecessors(std::span<const State> states, std::size_t at) {
  for (const std::size_t before : states[at].predecessors) {
    if (before >= at) {
      const std::string known = at == 0 ? "none, as no state precedes the first"
                                        : text("states 0 to ", at - 1, ", which precede this one");
      return StateProblem{at, "predecessor_states", text(before), known + " (a cycle has no such order)"};
    }
    for (const Column& column : kCumulative) {
      const double least = states[before].*column.value, value = states[at].*column.value;
      if (value < least - kRounding * least) {
        return StateProblem{
            at, column.name, text(value),
            text("at least ", least, ", which its predecessor ", before, " has, as figures are cumulative")};
      }
    }
  }
  return std::nullopt;
}

std::optional<StateProblem> problem_of_ends(std::span<const State> states) {
  std::vector<bool> leads_on(states.size());
  for (const State& state : states) {
    for (const std::size_t before : state.predecessors) leads_on[before] = true;
  }
  const auto end = std::find(leads_on.begin(), leads_on.end(), false);
  const auto at = static_cast<std::size_t>(end - leads_on.begin());
  if (at + 1 == states.size()) return std::nullopt;
  return StateProblem{states.size() - 1, "predecessor_states", text("no way from state ", at),
                      "one from every state, as the last state is the whole model"};
}

}  // namespace

std::optional<StateProblem> find_problem(std::span<const State> states) {
  for (std::size_t at = 0; at < states.size(); ++at) {
    if (auto problem = problem_of_numbers(states, at)) return problem;
    if (auto problem = problem_of_predecessors(states, at)) return problem;
  }
  return problem_of_ends(states);
}

}  // namespace trireme::plan
