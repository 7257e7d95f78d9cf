#include "trireme/parallel/zero/internal/update_watch.h"

#include <ATen/ops/any.h>

#include <utility>

#include "trireme/parallel/data/internal/tensor_digests.h"
#include "trireme/parallel/graphed_step.h"

namespace trireme::parallel {

void UpdateWatch::reduced(const optim::NamedTensors& pieces) {
  if (reductions_ == kReductions || GraphedStep::is_capturing()) return;
  ++reductions_;
  if (reductions_ != 1 && reductions_ != kReductions) return;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, piece] : pieces) tensors.push_back(piece);
  const std::vector<std::int64_t> before = std::exchange(digests_, digests_of(tensors));
  if (reductions_ == 1) return;
  std::vector<std::string> unchanged;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& [name, piece] = pieces[i];
    const at::Tensor& gradient = piece.grad();
    if (digests_[i] == before[i] && gradient.defined() && gradient.any().item<bool>())
      unchanged.push_back(name);
  }
  if (unchanged.empty()) return;
  const std::string others = unchanged.size() > 1 ? text(" and ", unchanged.size() - 1, " more") : "";
  log_.warning("FullyShardedDataParallel: no optimizer has changed parameter '", unchanged.front(), "'", others,
               ", with gradients in ", kReductions,
               " backward passes. Make the optimizer of all parameters() of the FullyShardedDataParallel, or "
               "freeze a parameter (requires_grad_(false)) before it is wrapped, which saves its reduction");
}

}  // namespace trireme::parallel
