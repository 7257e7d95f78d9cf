#pragma once
// Communication that gradients pass through, for layers whose weights are split over a group of ranks. Each
// function is the derivative of its partner, so that gradients of gradients pass through, too:
//
//   copy_to_ranks      nothing          | sum_over_ranks     all-reduce        "f" and "g" of Megatron-LM
//   gather_sequence    all-gather       | sum_to_sequence    reduce-scatter    the same with cut sequences
//   own_part           nothing          | join_parts         all-gather.
//
// A tensor is one of three kinds: *replicated* (the same on all ranks, with the same gradient), *cut* along a
// dim, or a *term*. The value is the sum of the ranks' terms. The gradient of the results of copy_to_ranks
// and gather_sequence is a term, and that of terms is replicated or cut. Mixing the kinds gives wrong
// gradients.
//
// Collective: every rank calls them in the same order, and runs backward through them in the same order.
// Autograd does so if all ranks have built the same graph. Parts differ by one at most (cut.h); messages of
// uneven parts are padded, tensors are not. A group of one rank costs nothing, not even a node of the graph.
// One thread per group. Sources: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3. Korthikanti et
// al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 4.2.2.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/comm/group.h"

namespace trireme::parallel {

/// Replicated -> the same, for a computation of which each rank has a part. Backward: sums the terms of the
/// gradient (all-reduce). Also for parameters that are replicated and used with a cut sequence.
at::Tensor copy_to_ranks(const at::Tensor& replicated, const comm::Group& group);
/// Terms -> their sum, replicated (all-reduce). Backward: nothing.
at::Tensor sum_over_ranks(const at::Tensor& term, const comm::Group& group);

/// Activations between the layers whose weights are cut: norms, dropouts and residuals work on a rank's part
/// of each sequence, which costs no more communication and 1/ranks of the memory.
struct Sequence {
  std::int64_t length = 0;  ///< of the whole sequence; any, also less than there are ranks
  std::int64_t dim = 1;     ///< (batch, time, ...)
};

/// The rank's part of each sequence -> the whole, for a computation of which each rank has a part. Backward:
/// sums the terms of the gradient (reduce-scatter). Throws InvalidArgument: not the part of this rank.
at::Tensor gather_sequence(const at::Tensor& part, const Sequence& sequence, const comm::Group& group);
/// Terms of whole sequences -> the rank's part of their sum (reduce-scatter). Backward: all-gather.
at::Tensor sum_to_sequence(const at::Tensor& term, const Sequence& sequence, const comm::Group& group);

/// Replicated -> the rank's part along `dim`. Backward: all-gather.
at::Tensor own_part(const at::Tensor& replicated, std::int64_t dim, const comm::Group& group);
/// Parts along `dim` -> the whole, replicated, whose size there is `size` (all-gather). Backward: nothing.
at::Tensor join_parts(const at::Tensor& part, std::int64_t dim, std::int64_t size, const comm::Group& group);

}  // namespace trireme::parallel
