#pragma once
// Batch normalization whose running statistics are those of the whole batch although it comes in
// micro-batches (torchgpipe's DeferredBatchNorm; `deferred_batch_norm` of PyTorch's Pipe). A micro-batch is
// normalized with its own statistics, as micro-batches pass one after the other. The running statistics
// change once per batch, by the mean and the unbiased variance of all its micro-batches. So evaluation does
// not depend on their number.
//
//     trireme::convert_deferred_batchnorm(*chain, 8);   // before the pipeline and the optimizer
//
// For pipelines and gradient accumulation in a custom training loop. A forward that is recomputed for its
// backward does not count again. One thread.

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>

#include "trireme/parallel/data/batch_norm_module.h"

namespace trireme::parallel {

class DeferredBatchNormImpl : public BatchNormModule<DeferredBatchNormImpl> {
 public:
  /// `chunks`: micro-batches of a batch. Throws InvalidArgument: below 1.
  DeferredBatchNormImpl(const torch::nn::BatchNormOptions& options, std::int64_t chunks);
  /// With these very tensors, under the names of torch::nn::BatchNorm2d.
  DeferredBatchNormImpl(const torch::nn::BatchNormOptions& options, std::int64_t chunks,
                        const BatchNormTensors& tensors);

  /// The next forward is the first micro-batch of a batch of so many. Micro-batches of a batch that was not
  /// finished, such as after an exception, do not count. Throws InvalidArgument: below 1.
  void set_chunks(std::int64_t chunks);

  /// `input`: (N, C) or (N, C, *), floating point. The result has the shape and dtype of the input. Throws
  /// InvalidArgument: a wrong shape; in training mode one value or none per channel.
  at::Tensor forward(const at::Tensor& input);

  /// Registers new tensors, those of a new batch norm. The next forward begins a batch; so with a clone.
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

 private:
  bool is_first_run();
  void add(const at::Tensor& input);
  void end_batch();

  std::int64_t chunks_;
  std::int64_t seen_ = 0;           ///< micro-batches of this batch
  double count_ = 0;                ///< their values per channel
  at::Tensor mean_, squares_;       ///< (C), of them: mean, and sum of squared differences from it
  std::uint64_t last_forward_ = 0;  ///< number of the last forward
};

/// The holder of a DeferredBatchNormImpl, for members and torch::nn::Sequential.
TORCH_MODULE(DeferredBatchNorm);

/// Replaces each torch::nn::BatchNorm1d, 2d and 3d below `module` by a DeferredBatchNorm with the same
/// tensors, names, options and mode. Also in Sequential, ModuleList and ModuleDict. Sets `chunks` of each
/// DeferredBatchNorm. Returns the number of layers. Throws InvalidArgument as convert_sync_batchnorm(), with
/// nothing changed; `chunks` below 1.
std::int64_t convert_deferred_batchnorm(torch::nn::Module& module, std::int64_t chunks);

}  // namespace trireme::parallel

namespace trireme {
using parallel::convert_deferred_batchnorm;
using parallel::DeferredBatchNorm;
using parallel::DeferredBatchNormImpl;
}  // namespace trireme
