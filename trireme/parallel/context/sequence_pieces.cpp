#include "trireme/parallel/context/sequence_pieces.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

using Pieces = std::array<Range, 2>;

std::int64_t dim_of_sequence(const at::Tensor& tensor, std::int64_t dim, std::int64_t size,
                             const char* expected) {
  require(dim >= -tensor.dim() && dim < tensor.dim(), "a tensor of shape ", tensor.sizes(), " has no dim ",
          dim, " that a sequence could lie along");
  require(tensor.size(dim) == size, "a tensor of shape ", tensor.sizes(), " has ", tensor.size(dim),
          " tokens along dim ", dim, "; expected ", expected, ": ", size);
  return dim < 0 ? dim + tensor.dim() : dim;
}

at::Tensor of_pieces(const at::Tensor& whole, std::int64_t dim, const Pieces& pieces) {
  return at::cat({whole.narrow(dim, pieces[0].begin, pieces[0].size),
                  whole.narrow(dim, pieces[1].begin, pieces[1].size)},
                 dim);
}

/// Every message has the size of the largest rank's pieces.
at::Tensor joined(const at::Tensor& own, std::int64_t dim, const ContextSequence& sequence) {
  comm::Group group = sequence.group;
  std::int64_t largest = 0;
  for (int rank = 0; rank < group.size(); ++rank) largest = std::max(largest, sequence.size_on(rank));
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = largest;
  at::Tensor mine = at::zeros(sizes, own.options());
  mine.narrow(dim, 0, own.size(dim)).copy_(own);
  sizes.insert(sizes.begin(), group.size());
  at::Tensor all = at::empty(sizes, own.options());
  if (all.numel() > 0) group.all_gather(all, mine);
  sizes.erase(sizes.begin());
  sizes[static_cast<std::size_t>(dim)] = sequence.length;
  at::Tensor whole = at::empty(sizes, own.options());
  for (int rank = 0; rank < group.size(); ++rank) {
    std::int64_t begin = 0;
    for (const Range& piece : sequence.pieces_of(rank)) {
      whole.narrow(dim, piece.begin, piece.size).copy_(all[rank].narrow(dim, begin, piece.size));
      begin += piece.size;
    }
  }
  return whole;
}

class JoinTokens : public torch::autograd::Function<JoinTokens> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& own,
                            std::int64_t dim, const ContextSequence& sequence) {
    const Pieces pieces = sequence.pieces_of(sequence.group.rank());
    context->saved_data["place"] =
        std::vector<std::int64_t>{dim, pieces[0].begin, pieces[0].size, pieces[1].begin, pieces[1].size};
    return joined(own, dim, sequence);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const std::vector<std::int64_t> place = context->saved_data["place"].toIntVector();
    const Pieces pieces = {Range{.begin = place[1], .size = place[2]},
                           Range{.begin = place[3], .size = place[4]}};
    return {of_pieces(gradients[0], place[0], pieces), {}, {}};
  }
};

}  // namespace

std::array<Range, 2> ContextSequence::pieces_of(int rank) const {
  const int pieces = 2 * group.size();
  return {part_of_rank(length, rank, pieces), part_of_rank(length, pieces - 1 - rank, pieces)};
}

std::int64_t ContextSequence::size_on(int rank) const {
  const std::array<Range, 2> pieces = pieces_of(rank);
  return pieces[0].size + pieces[1].size;
}

at::Tensor own_tokens(const at::Tensor& whole, std::int64_t dim, const ContextSequence& sequence) {
  dim = dim_of_sequence(whole, dim, sequence.length, "the whole sequence");
  if (sequence.group.size() == 1) return whole;
  return of_pieces(whole, dim, sequence.pieces_of(sequence.group.rank()));
}

at::Tensor join_tokens(const at::Tensor& own, std::int64_t dim, const ContextSequence& sequence) {
  dim = dim_of_sequence(own, dim, sequence.own_size(), "the two pieces of this rank");
  if (sequence.group.size() == 1) return own;
  return JoinTokens::apply(own, dim, sequence);
}

}  // namespace trireme::parallel
