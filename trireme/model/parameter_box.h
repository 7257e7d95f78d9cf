#pragma once
// The part of a model's parameters that a module holds. Most hold whole ones. A layer of tensor parallelism
// holds a box of the whole parameter, or several: sizes of the whole, where each box begins in it, and where
// its elements are in the module's tensor. First values, checkpoints and comparisons use the whole parameter,
// so they mean the same for any number of ranks. Values; thread-safe.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::model {

struct ParameterBox {
  std::string name;                        ///< of the parameter, as in the whole model
  std::vector<std::int64_t> global_sizes;  ///< of the whole parameter
  std::vector<std::int64_t> offsets;       ///< where the box begins in it
  std::vector<std::int64_t> sizes;         ///< of the box; it may be empty
  at::Tensor parameter = {};               ///< the module's, which holds the box
  std::vector<std::int64_t> places = {};   ///< where the box begins in that
  bool is_part = false;  ///< other ranks have other boxes, even where this one is the whole; else all have it

  bool is_whole() const { return sizes == global_sizes; }
  /// The box's part of a tensor shaped like the parameter: its gradient, or an optimizer's moment. A view.
  at::Tensor part_of(const at::Tensor& tensor) const;
  /// The box's part of the parameter: a view without gradient.
  at::Tensor values() const { return part_of(parameter.detach()); }
};

/// A parameter that is held whole.
ParameterBox whole_box(std::string name, at::Tensor parameter);

/// A module that holds parts of parameters.
class HoldsParts {
 public:
  HoldsParts() = default;
  HoldsParts(const HoldsParts&) = default;
  HoldsParts& operator=(const HoldsParts&) = default;
  virtual ~HoldsParts() = default;
  /// The boxes of its own parameters, without its children's, by the names that it registers them with. A
  /// parameter that is not among them is held by all ranks.
  virtual std::vector<ParameterBox> boxes() const = 0;
  /// Whether its weight is a table of rows, which begins as that of torch::nn::Embedding.
  virtual bool is_embedding() const { return false; }
};

/// The boxes of all parameters of the module and its children, by the names of named_parameters().
std::vector<ParameterBox> parameter_boxes(const torch::nn::Module& module);

/// Calls visit(begin in the whole, begin in the box, count) for each run of consecutive elements of the whole
/// tensor. Both begins count in row-major order.
template <class Visit>
void for_each_run(const ParameterBox& box, const Visit& visit) {
  std::size_t split = box.sizes.size();  // the dims from here on are whole, and so one run
  std::int64_t inner = 1;
  while (split > 0 && box.sizes[split - 1] == box.global_sizes[split - 1]) inner *= box.sizes[--split];
  const std::size_t outer = split > 0 ? split - 1 : 0;  // dims to count through
  const std::int64_t run = split > 0 ? box.sizes[outer] * inner : inner;
  std::int64_t numel = run;
  for (std::size_t dim = 0; dim < outer; ++dim) numel *= box.sizes[dim];
  std::vector<std::int64_t> index(outer, 0);
  for (std::int64_t in_box = 0; in_box < numel; in_box += run) {
    std::int64_t in_whole = 0;
    for (std::size_t dim = 0; dim < split; ++dim)
      in_whole = in_whole * box.global_sizes[dim] + box.offsets[dim] + (dim < outer ? index[dim] : 0);
    visit(in_whole * inner, in_box, run);
    for (std::size_t dim = outer; dim-- > 0;) {
      if (++index[dim] < box.sizes[dim]) break;
      index[dim] = 0;
    }
  }
}

}  // namespace trireme::model
