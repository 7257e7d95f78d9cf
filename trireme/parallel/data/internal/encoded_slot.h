#pragma once
// What a codec made of a vector, in its place of a message: of the same size on all ranks, and with a word in
// front that says how much of it counts, or that the vector is not finite. Functions without state.

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

#include "trireme/compress/codec.h"

namespace trireme::parallel {

std::span<std::byte> bytes_of(const at::Tensor& message);

/// For vectors of so many elements.
std::size_t slot_bytes(const compress::Codec& codec, std::size_t num_values,
                       const compress::Codec::Options& how);

/// Returns the bytes that the codec wrote.
std::span<const std::byte> write_slot(const compress::Codec& codec, std::span<const float> values,
                                      const compress::Codec::Options& how, std::span<std::byte> slot);
void write_not_finite(std::span<std::byte> slot);

/// Adds what a slot says to `values`. False: its vector is not finite. Throws CommError where no codec of
/// this program has written it; `what` names the vector.
bool add_slot(const compress::Codec& codec, std::span<const std::byte> slot, std::span<float> values,
              const std::string& what);

/// The same, in their place.
bool read_slot(const compress::Codec& codec, std::span<const std::byte> slot, std::span<float> values,
               const std::string& what);

}  // namespace trireme::parallel
