#pragma once
// Whether the tensors of a file are those of a model, before any of them is copied: by name and shape. Types
// may differ, copying converts them. Stateless; thread-safe.

#include <string>
#include <vector>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// Throws DataError unless `found` has the names of `expected`, each with the same shape: counts, and the
/// first five, of the missing, the unexpected and the differently shaped tensors. `source` names the file.
void check_same_tensors(const TensorMap& found, const TensorMap& expected, const std::string& source);

/// Removes from `found` tensors that are not in `expected` and are bit by bit equal to one that is. Weights
/// that Python's model holds under two names (a tied embedding and head) are saved under both. Tensors of
/// fewer than two dims stay, because biases and norms may be equal without being tied. Returns the names
/// removed.
std::vector<std::string> drop_tied_copies(TensorMap& found, const TensorMap& expected);

}  // namespace trireme::checkpoint
