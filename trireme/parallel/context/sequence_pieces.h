#pragma once
// The split of sequences over the ranks of a context group. A sequence has 2 x ranks consecutive pieces that
// differ by one token at most. Rank r has pieces r and 2 x ranks - 1 - r. In causal attention late tokens
// attend to many others and early ones to few. An early and a late piece give all ranks the same work (the
// zig-zag order of ring attention; ring_attention.h). A rank holds the early piece of a sequence, then the
// late one, so its tokens stay in order.
//
// Weights are not split: all ranks of the group have them whole, and their gradients are *terms*, which add
// up to the gradient over the sequence. A custom training loop sums them over the group, together with
// replicas: DistributedDataParallel over all of these ranks with ReduceScale::kSum. Its loss is a sum over
// tokens, divided by the count of all ranks.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "trireme/comm/group.h"
#include "trireme/parallel/tensor/cut.h"

namespace trireme::parallel {

/// A sequence of which each rank of the group has two pieces.
struct ContextSequence {
  comm::Group group;
  std::int64_t length = 0;  ///< of the whole; any, also less than there are pieces

  /// The early and the late piece of a rank.
  std::array<Range, 2> pieces_of(int rank) const;
  std::int64_t size_on(int rank) const;
  std::int64_t own_size() const { return size_on(group.rank()); }
};

/// Whole sequences along `dim` -> this rank's pieces. No communication; the gradient is that of the pieces,
/// zero elsewhere: a term. Throws InvalidArgument: another length.
at::Tensor own_tokens(const at::Tensor& whole, std::int64_t dim, const ContextSequence& sequence);

/// The rank's pieces along `dim` -> whole sequences, the same on all ranks (all-gather). Backward: the pieces
/// of the gradient, which has to be the same on all ranks. Collective. Throws InvalidArgument: not the pieces
/// of this rank.
at::Tensor join_tokens(const at::Tensor& own, std::int64_t dim, const ContextSequence& sequence);

}  // namespace trireme::parallel
