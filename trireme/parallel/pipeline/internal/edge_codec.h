#pragma once
// How tensors travel between stages (PipelineOptions::activations): which of them are encoded, by a rule that
// both ends know, and what of. Only who encodes draws, from a seed that it is given, so the other end needs
// nothing but the bytes, and nothing is kept from one message to the next. Any thread.

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
  /// What arrives lies on `device`.
  EdgeCodec(const ActivationCompression& options, c10::Device device);

  /// Whether tensors like this one travel encoded: fewer bytes, of enough elements.
  bool encodes(const TensorSpec& spec) const;
  /// Room for a message, on the device.
  at::Tensor room_for(const TensorSpec& spec) const;
  /// bf16, fp16: rounded where it lies. int8: by chance (compress/int8.cpp), in the host's memory; what is
  /// not finite arrives as NaN.
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
