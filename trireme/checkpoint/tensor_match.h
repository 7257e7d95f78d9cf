#pragma once
// Whether the tensors of a file are those of a model, before any of them is copied: by name and shape. Types
// may differ, copying converts them. Stateless; thread-safe.

#include <string>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// Throws DataError unless `found` has the names of `expected`, each with the same shape: counts, and the
/// first five, of the missing, the unexpected and the differently shaped tensors. `source` names the file.
void check_same_tensors(const TensorMap& found, const TensorMap& expected, const std::string& source);

}  // namespace trireme::checkpoint
