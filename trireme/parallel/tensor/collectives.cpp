#include "trireme/parallel/tensor/collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/parallel/tensor/cut.h"

namespace trireme::parallel {
namespace {

using comm::Group;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Map = std::function<at::Tensor(const at::Tensor&)>;

struct HeldMap : torch::CustomClassHolder {
  explicit HeldMap(Map given) : map(std::move(given)) {}
  const Map map;
};

/// A linear function of one tensor, with the function that computes its gradient.
class LinearMap : public torch::autograd::Function<LinearMap> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const Map& there, Map back) {
    context->saved_data["back"] = at::IValue::make_capsule(c10::make_intrusive<HeldMap>(std::move(back)));
    return there(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto back = context->saved_data["back"].toCapsule();
    return {static_cast<const HeldMap&>(*back).map(gradients[0]), {}, {}};
  }
};

Range own_range(std::int64_t size, const Group& group) {
  return part_of_rank(size, group.rank(), group.size());
}

std::int64_t largest_part(std::int64_t size, const Group& group) {
  return static_cast<std::int64_t>(
      divide_up(static_cast<std::uint64_t>(size), static_cast<std::uint64_t>(group.size())));
}

std::int64_t checked_dim(const at::Tensor& tensor, std::int64_t dim) {
  require(dim >= -tensor.dim() && dim < tensor.dim(), "a tensor of shape ", tensor.sizes(), " has no dim ",
          dim, " to be cut along");
  return dim < 0 ? dim + tensor.dim() : dim;
}

/// Room for one message per rank, each as large as the largest part.
at::Tensor messages(const at::Tensor& like, std::int64_t dim, std::int64_t size, const Group& group) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = largest_part(size, group);
  sizes.insert(sizes.begin(), group.size());
  return size % group.size() == 0 ? at::empty(sizes, like.options()) : at::zeros(sizes, like.options());
}

at::Tensor all_reduced(const at::Tensor& term, Group group) {
  at::Tensor sum = term.clone(at::MemoryFormat::Contiguous);
  if (sum.numel() > 0) group.all_reduce(sum);
  return sum;
}

at::Tensor all_gathered(const at::Tensor& part, std::int64_t dim, std::int64_t size, Group group) {
  at::Tensor all = messages(part, dim, size, group);
  const bool is_even = part.size(dim) == all.size(dim + 1);
  at::Tensor own = is_even ? part.contiguous() : all[group.rank()].clone();
  if (!is_even) own.narrow(dim, 0, part.size(dim)).copy_(part);
  if (all.numel() > 0) group.all_gather(all, own);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group.size(); ++rank)
    parts.push_back(all[rank].narrow(dim, 0, part_of_rank(size, rank, group.size()).size));
  return at::cat(parts, dim);
}

at::Tensor reduce_scattered(const at::Tensor& term, std::int64_t dim, Group group) {
  const std::int64_t size = term.size(dim);
  at::Tensor all = messages(term, dim, size, group);
  for (int rank = 0; rank < group.size(); ++rank) {
    const Range range = part_of_rank(size, rank, group.size());
    all[rank].narrow(dim, 0, range.size).copy_(term.narrow(dim, range.begin, range.size));
  }
  at::Tensor own = at::empty(all[0].sizes(), all.options());
  if (own.numel() > 0) group.reduce_scatter(own, all);
  return own.narrow(dim, 0, own_range(size, group).size).contiguous();
}

void check_part(const at::Tensor& part, std::int64_t dim, std::int64_t size, const Group& group) {
  const std::int64_t expected = own_range(size, group).size;
  require(part.size(dim) == expected, "rank ", group.rank(), " of the ", group.size(), " of group '",
          group.name(), "' has a part of ", part.size(dim), " along dim ", dim, " of a tensor of shape ",
          part.sizes(), "; of ", size, " in all it has ", expected, ": cut with own_part()");
}

}  // namespace

at::Tensor copy_to_ranks(const at::Tensor& replicated, const Group& group) {
  if (group.size() == 1) return replicated;
  return LinearMap::apply(
      replicated, [](const at::Tensor& input) { return input.view_as(input); },
      [group](const at::Tensor& gradient) { return sum_over_ranks(gradient, group); });
}

at::Tensor sum_over_ranks(const at::Tensor& term, const Group& group) {
  if (group.size() == 1) return term;
  return LinearMap::apply(
      term, [&](const at::Tensor& input) { return all_reduced(input, group); },
      [group](const at::Tensor& gradient) { return copy_to_ranks(gradient, group); });
}

at::Tensor gather_sequence(const at::Tensor& part, const Sequence& sequence, const Group& group) {
  const std::int64_t dim = checked_dim(part, sequence.dim);
  check_part(part, dim, sequence.length, group);
  if (group.size() == 1) return part;
  return LinearMap::apply(
      part, [&](const at::Tensor& input) { return all_gathered(input, dim, sequence.length, group); },
      [group, sequence](const at::Tensor& gradient) { return sum_to_sequence(gradient, sequence, group); });
}

at::Tensor sum_to_sequence(const at::Tensor& term, const Sequence& sequence, const Group& group) {
  const std::int64_t dim = checked_dim(term, sequence.dim);
  require(term.size(dim) == sequence.length, "a sequence of ", sequence.length, " in a tensor of shape ",
          term.sizes(), ", whose dim ", dim, " is ", term.size(dim), "; expected the whole sequence");
  if (group.size() == 1) return term;
  return LinearMap::apply(
      term, [&](const at::Tensor& input) { return reduce_scattered(input, dim, group); },
      [group, sequence](const at::Tensor& gradient) { return gather_sequence(gradient, sequence, group); });
}

at::Tensor own_part(const at::Tensor& replicated, std::int64_t dim, const Group& group) {
  if (group.size() == 1) return replicated;
  dim = checked_dim(replicated, dim);
  const std::int64_t size = replicated.size(dim);
  return LinearMap::apply(
      replicated,
      [&](const at::Tensor& input) {
        const Range range = own_range(size, group);
        return input.narrow(dim, range.begin, range.size).clone(at::MemoryFormat::Contiguous);
      },
      [group, dim, size](const at::Tensor& gradient) { return join_parts(gradient, dim, size, group); });
}

at::Tensor join_parts(const at::Tensor& part, std::int64_t dim, std::int64_t size, const Group& group) {
  dim = checked_dim(part, dim);
  check_part(part, dim, size, group);
  if (group.size() == 1) return part;
  return LinearMap::apply(
      part, [&](const at::Tensor& input) { return all_gathered(input, dim, size, group); },
      [group, dim](const at::Tensor& gradient) { return own_part(gradient, dim, group); });
}

}  // namespace trireme::parallel
