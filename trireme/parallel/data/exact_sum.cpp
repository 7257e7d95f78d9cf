#include "trireme/parallel/data/exact_sum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/base/clock.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/replicas.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kPackBytes = 4 << 20;

/// Gradients of rounded weights are rounded, but their sums must not be.
at::ScalarType type_of_sum(const at::Tensor& leaf) {
  return at::isReducedFloatingType(leaf.scalar_type()) ? at::kFloat : leaf.scalar_type();
}

/// Adds `b` to `a` in place if both are defined.
at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  return at::Tensor(a).add_(b);
}

}  // namespace

ExactSum::ExactSum(std::optional<comm::Group> data, const optim::NamedTensors& leaves)
    : data_(std::move(data)) {
  for (const auto& [name, leaf] : leaves)
    if (leaf.requires_grad()) leaves_.push_back({leaf, leaf.sizes().vec()});
}

void ExactSum::add(int microbatch) {
  const at::NoGradGuard no_grad;
  Gradients gradients;
  for (const Leaf& leaf : leaves_) {
    const at::Tensor gradient = std::exchange(leaf.tensor.mutable_grad(), at::Tensor());
    gradients.push_back(gradient.defined() ? gradient.to(type_of_sum(gradient)).contiguous() : gradient);
    count_as(MemoryKind::kGradients, gradients.back());
  }
  put({0, microbatch}, std::move(gradients));
}

void ExactSum::put(Node node, Gradients gradients) {
  while (true) {
    const auto sibling = sums_.find({node.first, node.second ^ 1});
    if (sibling == sums_.end()) break;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      gradients[i] = sum_of(gradients[i], sibling->second[i]);
    sums_.erase(sibling);
    node = {node.first + 1, node.second / 2};
  }
  sums_.emplace(node, std::move(gradients));
}

/// Micro-batches without samples have no node. A node without a sibling moves up unchanged.
ExactSum::Gradients ExactSum::take_root() {
  if (sums_.empty()) return Gradients(leaves_.size());
  while (sums_.size() > 1) {
    auto lowest = sums_.extract(sums_.begin());
    put({lowest.key().first + 1, lowest.key().second / 2}, std::move(lowest.mapped()));
  }
  return std::move(sums_.extract(sums_.begin()).mapped());
}

void ExactSum::finish() {
  const at::NoGradGuard no_grad;
  Gradients sums = take_root();
  const double begin_s = now_s();
  if (data_ && data_->size() > 1) add_replicas(sums);
  waited_s_ += now_s() - begin_s;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor& gradient = leaves_[i].tensor.mutable_grad();
    gradient = sum_of(sums[i], gradient);
  }
}

void ExactSum::add_replicas(Gradients& sums) {
  at::Tensor reached = at::zeros({static_cast<std::int64_t>(sums.size())}, at::kInt);
  for (std::size_t i = 0; i < sums.size(); ++i) reached.data_ptr<int>()[i] = sums[i].defined() ? 1 : 0;
  data_->all_reduce(reached, comm::ReduceOp::kMax);
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (reached.const_data_ptr<int>()[i] == 0) continue;
    if (!sums[i].defined())
      sums[i] = at::zeros(leaves_[i].sizes,
                          at::device(leaves_[i].tensor.device()).dtype(type_of_sum(leaves_[i].tensor)));
    all.push_back(sums[i]);
  }
  for (const std::vector<at::Tensor>& pack : packs_of(all, kPackBytes)) add_replicas(pack);
}

void ExactSum::add_replicas(const std::vector<at::Tensor>& pack) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& each : pack) flat.push_back(each.reshape({-1}));
  const at::Tensor mine = at::cat(flat);
  at::Tensor all = at::empty({data_->size() * mine.numel()}, mine.options());
  for (const at::Tensor& each : {mine, all}) count_as(MemoryKind::kCommunication, each);
  data_->all_gather(all, mine);
  std::vector<at::Tensor> rows = all.chunk(data_->size());
  for (std::size_t step = 1; step < rows.size(); step *= 2) {
    for (std::size_t i = 0; i + step < rows.size(); i += 2 * step) rows[i].add_(rows[i + step]);
  }
  std::int64_t begin = 0;
  for (const at::Tensor& each : pack) {
    at::Tensor(each).copy_(rows.front().narrow(0, begin, each.numel()).view(each.sizes()));
    begin += each.numel();
  }
}

double exact_sum(std::vector<double> values) {
  if (values.empty()) return 0;
  for (std::size_t step = 1; step < values.size(); step *= 2) {
    for (std::size_t i = 0; i + step < values.size(); i += 2 * step) values[i] += values[i + step];
  }
  return values.front();
}

}  // namespace trireme::parallel
