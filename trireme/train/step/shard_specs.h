#pragma once
// Layout of a rank's part of a model's parameters: parts that layers are cut into (parallel/tensor), ranges
// of elements that replicas shard (parallel/zero), or ranges of such parts. Also the layout of the optimizer
// state next to them in the whole. Values; thread-safe.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/shard.h"
#include "trireme/model/model.h"
#include "trireme/parallel/zero/pieces.h"

namespace trireme::train {

/// The parts of a parameter that are in one tensor.
struct CutParameter {
  /// A box of the whole parameter, and where it begins in the tensor.
  struct Part {
    checkpoint::Box box;
    std::vector<std::int64_t> places;
  };
  std::vector<std::int64_t> global_sizes;
  std::vector<std::int64_t> sizes;  ///< of the tensor that layers compute with
  std::vector<Part> parts;
};

struct ShardSpecs {
  std::map<std::string, CutParameter> cut = {};  ///< by parameter; others are not cut
  parallel::Pieces pieces = {};                  ///< the layers' parts of the parameter

  /// Identifies the part: only replicas hold the same part under the same label.
  std::string label_of(const std::string& parameter) const;
};

/// The parameters of which the model holds parts, as model::parameter_boxes() has them.
std::map<std::string, CutParameter> cut_parameters(const model::Model& model);

/// A tensor called NAME or PREFIX/NAME with the sizes of the held part of NAME becomes the boxes of that
/// part. Every other tensor is whole. Shared, not copied; in the order of the names.
checkpoint::Shards shards_of(const checkpoint::TensorMap& tensors, const ShardSpecs& held);

}  // namespace trireme::train
