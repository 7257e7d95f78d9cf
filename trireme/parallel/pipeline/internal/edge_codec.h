#pragma once
// Encoding of tensors between stages (PipelineOptions::activations): a rule that both ends have selects the
// encoded tensors. Only the encoding end draws random numbers, from a seed that it is given. So the other end
// needs only the bytes, and there is no state from one message to the next. Any thread.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "trireme/compress/codec.h"
#include "trireme/parallel/pipeline/internal/transfers.h"
#include "trireme/parallel/pipeline/pipeline_options.h"

namespace trireme::parallel {

/// "int8 from 1024 elements on, seed 5"
std::string to_text(const ActivationCompression& compression);

class EdgeCodec {
 public:
  /// Received tensors are on `device`.
  EdgeCodec(const ActivationCompression& options, c10::Device device);

  /// Whether tensors like this one travel encoded: fewer bytes, of enough elements.
  bool encodes(const TensorSpec& spec) const;
  /// Room for a message, on the device.
  at::Tensor room_for(const TensorSpec& spec) const;
  /// bf16, fp16: rounded on its device. int8: stochastically (compress/int8.cpp), in the host's memory;
  /// values that are not finite arrive as NaN.
  at::Tensor encode(const at::Tensor& tensor, std::uint64_t seed) const;
  /// As the sender had it, but for the rounding.
  at::Tensor decode(const at::Tensor& message, const TensorSpec& spec) const;

 private:
  const at::ScalarType rounded_to_;        ///< kFloat: not so
  const compress::Codec* const by_block_;  ///< null: not so
  const std::int64_t min_numel_;
  const c10::Device device_;
};

}  // namespace trireme::parallel
