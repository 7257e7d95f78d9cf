#pragma once
// Where a chain of layers is cut into stages. Pure.

#include <string>
#include <vector>

#include "trireme/model/layer.h"

namespace trireme::parallel {

/// First layer of each stage but the first, so that the largest number of parameters in a stage is as small
/// as contiguous stages allow, and the others even; no stage is empty. Throws InvalidArgument: more stages
/// than layers.
std::vector<int> cuts_by_parameters(const std::vector<model::Layer>& layers, int num_stages);

/// Throws InvalidArgument unless there is one cut less than stages, rising, inside the chain.
void check_cuts(const std::vector<int>& cuts, int num_layers, int num_stages);

}  // namespace trireme::parallel
