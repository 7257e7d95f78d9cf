#pragma once
// A vector encoded by a codec, in its place of a message: of the same size on all ranks. A word in front has
// the number of used bytes, or marks the vector as not finite. Vectors and slots are on one device: on the
// CPU the loops of compress/codec.h work on them, elsewhere the tensor operations of device_codec.h, which
// read nothing back. Functions without state.

#include <ATen/core/Tensor.h>

#include <string>

#include "trireme/compress/codec.h"
#include "trireme/parallel/data/internal/flag.h"

namespace trireme::parallel {

/// Bytes for vectors of so many elements, a multiple of 8.
std::int64_t slot_bytes(const compress::Codec& codec, std::int64_t num_values,
                        const compress::Codec::Options& how);

/// Encodes `values` (f32, flat) into `slot` (u8, flat), or marks it as not finite.
void write_slot(const compress::Codec& codec, const at::Tensor& values, const compress::Codec::Options& how,
                const Flag& finite, const at::Tensor& slot);

/// For codecs that leave out: keeps of `values` only the part that is not in this rank's slot; all of them,
/// where its vector is not finite.
void take_out(const compress::Codec& codec, const at::Tensor& slot, const Flag& finite,
              const at::Tensor& values);

/// Adds the values of a slot to `values`. False: its vector is not finite, and `values` have no meaning.
/// Throws CommError where no codec of this program has written it; `what` names the vector. On a device such
/// a slot is taken as one that is not finite.
Flag add_slot(const compress::Codec& codec, const at::Tensor& slot, const at::Tensor& values,
              const std::string& what);

/// The same, in their place.
Flag read_slot(const compress::Codec& codec, const at::Tensor& slot, const at::Tensor& values,
               const std::string& what);

}  // namespace trireme::parallel
