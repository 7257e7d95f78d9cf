#pragma once
// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024) as torch.optim.Muon
// defines it, for matrices. First m = lerp(g, m, momentum). Then u = m, or lerp(g, m, momentum) with
// Nesterov's momentum. Five Newton-Schulz steps X <- aX + (bA + cA^2)X, A = XX^T, make u nearly orthogonal.
// They move all its singular values towards 1. Then p -= lr * weight_decay * p, and p -= lr * scale * u. A
// tensor of more dims is the matrix of its first dim and the rest. State: momentum m.
//
// We differ from PyTorch in that the steps are taken in f32 (f64 for f64), not in bf16: they magnify the
// rounding of small singular values up to 3.4445^5 = 485 times, and ranks, micro-batches and stages are to
// give the same numbers.

#include <memory>
#include <string>
#include <vector>

#include "trireme/optim/grouped_optimizer.h"

namespace trireme::optim {

class Muon : public UpdateRule {
 public:
  /// Throws InvalidArgument: momentum outside [0, 1), unknown muon_scale.
  explicit Muon(const OptimizerOptions& options);
  std::vector<StateTensor> states() const override;
  void update(UpdateLists& lists, const GroupSettings& group, double lr) const override;

 private:
  double scale_of(at::IntArrayRef sizes) const;
  void update_one(const UpdateLists& lists, std::size_t i, const at::Tensor& update, double lr) const;

  double momentum_;
  bool nesterov_;
  bool as_adamw_;  ///< the root of the mean square of an update is that of adamw
};

/// Muon for the matrices and AdamW, at lr * muon_adamw_rate, for the rest: tensors with at most one dim, and
/// those whose names muon_spares lists. Throws as Muon and Adam do, and for bad muon_spares and
/// muon_adamw_rate.
std::unique_ptr<Optimizer> make_muon(const OptimizerOptions& options, NamedTensors parameters,
                                     const Surroundings& surroundings);

}  // namespace trireme::optim
