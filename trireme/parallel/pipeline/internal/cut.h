#pragma once
// Where a chain of layers is cut into stages. Pure.

#include <vector>

namespace trireme::parallel {

/// Throws InvalidArgument unless there is one cut less than stages, rising, inside the chain.
void check_cuts(const std::vector<int>& cuts, int num_layers, int num_stages);

}  // namespace trireme::parallel
