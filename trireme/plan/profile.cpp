#include "trireme/plan/profile.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/plan/internal/state_check.h"

namespace trireme::plan {
namespace {

void check_layer(const Layer& layer, std::size_t number) {
  const auto check = [&](const char* figure, double value) {
    require(std::isfinite(value) && value >= 0, "layer ", number, " (", layer.name, "): ", figure, " is ",
            value, "; expected a finite number, 0 or more");
  };
  check("forward_s", layer.forward_s);
  check("backward_s", layer.backward_s);
  check("activation_bytes", layer.activation_bytes);
  check("parameter_bytes", layer.parameter_bytes);
  check("output_bytes", layer.output_bytes);
}

std::vector<State> states_of(std::span<const Layer> layers) {
  std::vector<State> states;
  State sum;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    check_layer(layer, i);
    sum.name = layer.name;
    sum.compute_s += layer.forward_s + layer.backward_s;
    sum.activation_bytes += layer.activation_bytes;
    sum.parameter_bytes += layer.parameter_bytes;
    sum.output_bytes = layer.output_bytes;
    if (i > 0) sum.predecessors = {i - 1};
    states.push_back(sum);
  }
  return states;
}

}  // namespace

Profile::Profile(std::span<const Layer> layers) : Profile(states_of(layers)) {}

Profile::Profile(std::vector<State> states) : states_(std::move(states)) {
  require(!states_.empty(), "a profile has at least one layer, found none");
  if (const auto problem = find_problem(states_)) {
    throw InvalidArgument(text("state ", problem->state, " (", states_[problem->state].name, "), ",
                               problem->column, ": found ", problem->found, ", expected ",
                               problem->expected));
  }
  const std::size_t num_cuts = states_.size() + 1;
  before_.assign(num_cuts, std::vector<bool>(num_cuts));
  num_layers_.assign(num_cuts, 0);
  for (std::size_t cut = 1; cut < num_cuts; ++cut) {
    before_[cut][0] = true;
    for (const std::size_t state : states_[cut - 1].predecessors) {
      const std::size_t earlier = state + 1;
      before_[cut][earlier] = true;
      for (std::size_t i = 1; i < earlier; ++i) before_[cut][i] = before_[cut][i] || before_[earlier][i];
      num_layers_[cut] = std::max(num_layers_[cut], num_layers_[earlier]);
    }
    ++num_layers_[cut];
  }
}

Work Profile::between(std::size_t from, std::size_t to) const {
  static const State kNothing{};
  const State& begin = from == 0 ? kNothing : states_[from - 1];
  const State& end = states_[to - 1];
  return {.compute_s = std::max(end.compute_s - begin.compute_s, 0.0),
          .activation_bytes = std::max(end.activation_bytes - begin.activation_bytes, 0.0),
          .parameter_bytes = std::max(end.parameter_bytes - begin.parameter_bytes, 0.0),
          .num_layers = num_layers_[to] - num_layers_[from]};
}

double Profile::output_bytes(std::size_t cut) const {
  return cut == 0 || cut == last_cut() ? 0 : states_[cut - 1].output_bytes;
}

}  // namespace trireme::plan
