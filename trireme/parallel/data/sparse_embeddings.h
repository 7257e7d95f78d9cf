#pragma once
// Embeddings that make sparse gradients, which can be neither reduced over ranks nor taken by our optimizers.

#include <torch/nn/module.h>

#include <string>

namespace trireme::parallel {

/// Throws InvalidArgument that names the parameter when an embedding in the module, which is called `name` in
/// the model, makes sparse gradients. Not collective; thread-safe.
void reject_sparse_embeddings(const torch::nn::Module& module, const std::string& name);

}  // namespace trireme::parallel
