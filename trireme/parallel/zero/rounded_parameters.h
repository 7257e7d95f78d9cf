#pragma once
// Parameters that autocast rounds at every use: f32 weights that belong to linear layers and convolutions
// alone, of libtorch or of parallel/tensor. Their copies for computation may be kept rounded, then, and no
// bit changes. Biases and the parameters of norms, embeddings and unknown modules are not among them.

#include <set>
#include <string>
#include <vector>

#include "trireme/model/layer.h"

namespace trireme::parallel {

/// Their names.
std::set<std::string> rounded_parameters(const std::vector<model::Layer>& layers);

}  // namespace trireme::parallel
