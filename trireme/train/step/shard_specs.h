#pragma once
// What a rank holds of a model's parameters, where it does not hold them whole: parts that layers are cut
// into (parallel/tensor), runs of elements that replicas share out (parallel/zero), or runs of such parts;
// and how that, and what optimizers keep next to it, lies in the whole. Values; thread-safe.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/shard.h"
#include "trireme/model/model.h"
#include "trireme/parallel/zero/pieces.h"

namespace trireme::train {

/// The parts of a parameter that lie in one tensor.
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
  parallel::Pieces pieces = {};                  ///< of what layers compute with

  /// What nobody else holds in the same way, but replicas.
  std::string label_of(const std::string& parameter) const;
};

/// The parameters of which the model holds parts, as model::parameter_boxes() has them.
std::map<std::string, CutParameter> cut_parameters(const model::Model& model);

/// A tensor called NAME or PREFIX/NAME that has the sizes of what is held of NAME becomes the boxes of that;
/// every other is whole. Shared, not copied; in the order of the names.
checkpoint::Shards shards_of(const checkpoint::TensorMap& tensors, const ShardSpecs& held);

}  // namespace trireme::train
