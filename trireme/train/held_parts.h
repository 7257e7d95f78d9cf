#pragma once
// Pieces of parameters, and of what optimizers keep for them, as shards of whole tensors.

#include "trireme/checkpoint/shard.h"
#include "trireme/parallel/zero/pieces.h"

namespace trireme::train {

/// A tensor called NAME or PREFIX/NAME that has the sizes of NAME's piece becomes the boxes of that piece;
/// every other is whole. Shared, not copied; in the order of the names.
checkpoint::Shards shards_of(const checkpoint::TensorMap& tensors, const parallel::Pieces& pieces);

}  // namespace trireme::train
