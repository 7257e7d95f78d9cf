#pragma once
// Which parameters autocast rounds at every use: f32 weights that belong to linear layers and
// convolutions alone, of libtorch or of parallel/tensor. What they are computed with may be kept rounded,
// then, and no bit changes. Biases, those of norms and embeddings, which autocast leaves alone, and of
// modules that are not known are none of them.

#include <set>
#include <string>
#include <vector>

#include "trireme/model/layer.h"

namespace trireme::parallel {

/// Their names.
std::set<std::string> rounded_parameters(const std::vector<model::Layer>& layers);

}  // namespace trireme::parallel
