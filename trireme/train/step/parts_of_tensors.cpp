#include "trireme/train/step/internal/parts_of_tensors.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

namespace trireme::train {
namespace {

/// The dim along which this rank has only a part; -1: none.
std::int64_t cut_dim_of(const CutParameter& parameter) {
  for (std::size_t dim = 0; dim < parameter.sizes.size(); ++dim) {
    if (parameter.sizes[dim] != parameter.global_sizes[dim]) return static_cast<std::int64_t>(dim);
  }
  return -1;
}

class PartsOfGroup : public optim::TensorParts {
 public:
  /// All ranks have split the same parameters. If the ranks do not divide one evenly, a rank may have all of
  /// it.
  PartsOfGroup(comm::Group group, const std::map<std::string, CutParameter>& cut) : group_(std::move(group)) {
    const auto count = static_cast<std::int64_t>(cut.size());
    at::Tensor dims = at::empty({count}, at::kLong), own = at::empty({count}, at::kLong);
    at::Tensor lengths = at::empty({group_.size(), count}, at::kLong);
    std::int64_t i = 0;
    for (const auto& [name, parameter] : cut) dims.data_ptr<std::int64_t>()[i++] = cut_dim_of(parameter);
    group_.all_reduce(dims, comm::ReduceOp::kMax);
    i = 0;
    for (const auto& [name, parameter] : cut) {
      const std::int64_t dim = dims.const_data_ptr<std::int64_t>()[i];
      own.data_ptr<std::int64_t>()[i++] = dim < 0 ? 0 : parameter.sizes[static_cast<std::size_t>(dim)];
    }
    group_.all_gather(lengths, own);
    i = 0;
    for (const auto& [name, parameter] : cut) {
      const std::int64_t dim = dims.const_data_ptr<std::int64_t>()[i];
      if (dim >= 0) {
        optim::PartOfTensor& part = parts_[name];
        part = {.whole_sizes = parameter.global_sizes, .dim = dim, .rank = group_.rank(), .lengths = {}};
        for (int rank = 0; rank < group_.size(); ++rank)
          part.lengths.push_back(lengths.const_data_ptr<std::int64_t>()[rank * count + i]);
      }
      ++i;
    }
  }

  const optim::PartOfTensor* part(const std::string& name) const override {
    const auto found = parts_.find(name);
    return found == parts_.end() ? nullptr : &found->second;
  }

  void add_up(const at::Tensor& numbers) const override {
    at::Tensor sums = numbers;
    comm::Group(group_).all_reduce(sums);
  }

  at::Tensor join(const at::Tensor& own, const optim::PartOfTensor& part) const override {
    std::vector<std::int64_t> sizes = own.sizes().vec();
    sizes[static_cast<std::size_t>(part.dim)] = *std::ranges::max_element(part.lengths);
    const at::Tensor padded = at::zeros(sizes, own.options());
    padded.narrow(part.dim, 0, own.size(part.dim)).copy_(own);
    sizes.insert(sizes.begin(), group_.size());
    at::Tensor all = at::empty(sizes, own.options());
    comm::Group(group_).all_gather(all, padded);
    std::vector<at::Tensor> parts = all.unbind();
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      parts[rank] = parts[rank].narrow(part.dim, 0, part.lengths[rank]);
    return at::cat(parts, part.dim);
  }

 private:
  comm::Group group_;
  std::map<std::string, optim::PartOfTensor> parts_;
};

}  // namespace

std::shared_ptr<const optim::TensorParts> parts_of_tensors(const std::optional<comm::Group>& tensor,
                                                           const ShardSpecs& held,
                                                           const std::string& optimizer) {
  if (!tensor || held.cut.empty() || !optim::needs_whole_tensors(optimizer)) return nullptr;
  return std::make_shared<PartsOfGroup>(*tensor, held.cut);
}

}  // namespace trireme::train
