#pragma once
// Parameters that are parts of tensors, the rest of which other ranks hold (parallel/tensor): exchanges with
// those ranks for an optimizer that uses whole tensors. All of them make optimizers of parts of the same
// tensors in the same order, and update together: the exchanges are collective.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

/// The whole tensor of a parameter that is a part.
struct PartOfTensor {
  std::vector<std::int64_t> whole_sizes;  ///< of the tensor
  std::int64_t dim = 0;                   ///< along which ranks hold parts
  int rank = 0;                           ///< this one among them
  std::vector<std::int64_t> lengths;      ///< along that dim, of each rank's part
};

class TensorParts {
 public:
  virtual ~TensorParts() = default;
  /// Null: the parameter of that name is whole on each rank.
  virtual const PartOfTensor* part(const std::string& name) const = 0;
  /// `numbers` become their sums over the ranks. Collective.
  virtual void add_up(const at::Tensor& numbers) const = 0;
  /// The tensor that `own`, something of the sizes of such a parameter, is a part of. Collective.
  virtual at::Tensor join(const at::Tensor& own, const PartOfTensor& part) const = 0;
};

/// make_optimizer() for parameters that may be such parts: lars and lamb go by the norms of whole tensors,
/// muon makes whole matrices orthogonal. Cost per update: for lars and lamb two numbers of each tensor, added
/// up; for muon each matrix, gathered. Others ask nothing.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, NamedTensors parameters,
                                          std::shared_ptr<Offload> offload,
                                          std::shared_ptr<const TensorParts> parts);

}  // namespace trireme::optim
