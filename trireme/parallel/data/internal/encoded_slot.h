#pragma once
// What a codec made of a vector, in its place of a message: of the same size on all ranks, and with a word in
// front that says how much of it counts, or that the vector is not finite. Vectors and slots lie on one
// device: on the CPU the loops of compress/codec.h work on them, elsewhere the tensor operations of
// device_codec.h, which read nothing back. Functions without state.

#include <ATen/core/Tensor.h>

#include <string>

#include "trireme/compress/codec.h"
#include "trireme/parallel/data/internal/flag.h"

namespace trireme::parallel {

/// Bytes for vectors of so many elements, a multiple of 8.
std::int64_t slot_bytes(const compress::Codec& codec, std::int64_t num_values,
                        const compress::Codec::Options& how);

/// Encodes `values` (f32, flat) into `slot` (u8, flat), or says that they are not finite.
void write_slot(const compress::Codec& codec, const at::Tensor& values, const compress::Codec::Options& how,
                const Flag& finite, const at::Tensor& slot);

/// Where a codec leaves out: of `values` only what this rank's slot does not say stays; all of them, where
/// its vector is not finite.
void take_out(const compress::Codec& codec, const at::Tensor& slot, const Flag& finite,
              const at::Tensor& values);

/// Adds what a slot says to `values`. False: its vector is not finite, and `values` have no meaning. Throws
/// CommError where no codec of this program has written it; `what` names the vector. On a device such a slot
/// is taken as one that is not finite.
Flag add_slot(const compress::Codec& codec, const at::Tensor& slot, const at::Tensor& values,
              const std::string& what);

/// The same, in their place.
Flag read_slot(const compress::Codec& codec, const at::Tensor& slot, const at::Tensor& values,
               const std::string& what);

}  // namespace trireme::parallel
