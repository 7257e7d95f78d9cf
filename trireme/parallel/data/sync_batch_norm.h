#pragma once
// Batch normalization whose statistics are those of the global batch (PyTorch: torch.nn.SyncBatchNorm). Ranks
// may have different numbers of samples, zero included. Means and variances of the ranks are combined by Chan
// et al., "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979. Without a group,
// in a group of one rank, and in eval mode it is an ordinary batch norm without communication.
//
//   trireme::convert_sync_batchnorm(*model, *context);        // before the wrapper and the optimizer
//   trireme::DistributedDataParallel ddp(*context, model);
//
// Collective: in training mode every forward is one all_gather of 2 * channels + 1 numbers. Every backward
// that reaches the input is one all_reduce of 2 * channels numbers. All ranks run the same layers in the same
// order, with a batch of zero samples where a rank has none. Both wait within forward or backward. The layers
// of a module share one group, which is not the group of the gradients: a bucket may start at different
// places between the layers on different ranks. One thread runs forward and backward.

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <ostream>

#include "trireme/comm/context.h"
#include "trireme/comm/group.h"
#include "trireme/parallel/data/batch_norm_module.h"

namespace trireme::parallel {

class SyncBatchNormImpl : public BatchNormModule<SyncBatchNormImpl> {
 public:
  /// An ordinary batch norm over any input (N, C) or (N, C, *) until set_group().
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options);
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, comm::Group group);
  /// With these very tensors, under the names of torch::nn::BatchNorm2d.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, comm::Group group,
                    const BatchNormTensors& tensors);

  /// From now on statistics are those of all ranks of `group`. Not collective; the same on all ranks.
  void set_group(comm::Group group);

  /// `input`: (N, C) or (N, C, *), floating point; N may differ between ranks, and may be 0. The result has
  /// the shape and dtype of the input. Statistics of bf16 and fp16 are f32. Running statistics get the mean
  /// and the unbiased variance of the global batch. Throws InvalidArgument: a wrong shape; on all ranks, one
  /// value or none per channel over all ranks, with the running statistics unchanged; a Join over the same
  /// ranks. Throws CommError. Backward throws InvalidArgument under create_graph.
  at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

 private:
  void check(const at::Tensor& input) const;
  /// Returns the share of this batch in the running statistics.
  double count_batch();
  at::Tensor forward_of_rank(const at::Tensor& input);

  std::optional<comm::Group> group_;
};

/// The holder of a SyncBatchNormImpl, for members and torch::nn::Sequential.
TORCH_MODULE(SyncBatchNorm);

/// Replaces each torch::nn::BatchNorm1d, 2d and 3d below `module` by a SyncBatchNorm over `group` with the
/// same tensors, names, options and mode. Also in Sequential, ModuleList and ModuleDict. Gives `group` to
/// each SyncBatchNorm. Returns the number of layers. Before DistributedDataParallel and before the optimizer.
/// Not collective; the same on all ranks.
///
/// Throws InvalidArgument, with nothing changed, if `module` is itself a batch norm, or if a layer's class
/// derives from BatchNorm1d, 2d or 3d. Also for a layer that another object holds, such as a member
/// `torch::nn::BatchNorm2d norm` of its parent. The parent's forward would continue to use the old layer:
/// declare it as `trireme::SyncBatchNorm norm`.
std::int64_t convert_sync_batchnorm(torch::nn::Module& module, const comm::Group& group);
/// The same over a new group of all ranks. Collective. Throws CommError.
std::int64_t convert_sync_batchnorm(torch::nn::Module& module, comm::Context& context);

}  // namespace trireme::parallel

namespace trireme {
using parallel::convert_sync_batchnorm;
using parallel::SyncBatchNorm;
}  // namespace trireme
