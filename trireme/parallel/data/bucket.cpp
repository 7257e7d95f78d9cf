#include "trireme/parallel/data/internal/bucket.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <map>
#include <utility>

namespace trireme::parallel {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;

/// Elements per aligned unit.
std::int64_t unit_of(const at::Tensor& tensor) {
  return std::max<std::int64_t>(1, kAlignmentBytes / static_cast<std::int64_t>(tensor.element_size()));
}

std::int64_t padded_numel(const at::Tensor& tensor) {
  const std::int64_t unit = unit_of(tensor);
  return (tensor.numel() + unit - 1) / unit * unit;
}

/// A tensor of its own over part of `flat`'s memory.
at::Tensor part_of(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes,
                   at::IntArrayRef strides) {
  at::Tensor part = at::empty({0}, flat.options());
  part.set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
  return part;
}

/// A dense parameter of any memory order keeps its strides, so that fused kernels see one layout.
std::vector<std::int64_t> strides_in_bucket(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()));
  std::int64_t stride = 1;
  for (std::size_t dim = strides.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= std::max<std::int64_t>(1, tensor.size(static_cast<std::int64_t>(dim)));
  }
  return strides;
}

}  // namespace

std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<Parameter>& parameters,
                                                     std::span<const std::size_t> ready_order,
                                                     std::int64_t first_bucket_bytes,
                                                     std::int64_t bucket_bytes) {
  struct Open {
    std::size_t bucket = 0;
    std::int64_t bytes = 0;
    std::int64_t limit = 0;
    bool closed = true;
    bool first = true;
  };
  std::map<std::pair<at::ScalarType, std::string>, Open> open;
  std::vector<std::vector<std::size_t>> buckets;
  for (const std::size_t number : ready_order) {
    const at::Tensor& tensor = parameters[number].tensor;
    Open& current = open[{tensor.scalar_type(), tensor.device().str()}];
    if (current.closed) {
      current = {.bucket = buckets.size(),
                 .bytes = 0,
                 .limit = current.first ? first_bucket_bytes : bucket_bytes,
                 .closed = false,
                 .first = false};
      buckets.emplace_back();
    }
    buckets[current.bucket].push_back(number);
    current.bytes += static_cast<std::int64_t>(tensor.nbytes());
    current.closed = current.bytes >= current.limit;
  }
  // A bucket is ready with its last gradient: that, not the first one, is the order in which they start.
  std::vector<std::size_t> place(parameters.size());
  for (std::size_t i = 0; i < ready_order.size(); ++i) place[ready_order[i]] = i;
  std::ranges::sort(buckets, {}, [&](const auto& members) { return place[members.back()]; });
  return buckets;
}

Bucket make_bucket(const comm::Group& group, std::vector<Parameter>& parameters,
                   std::vector<std::size_t> members, std::size_t number) {
  std::int64_t numel = 0;
  for (const std::size_t member : members) numel += padded_numel(parameters[member].tensor);
  const at::Tensor& first = parameters[members.front()].tensor;
  const std::int64_t total = numel + unit_of(first);
  Bucket bucket{.parameters = std::move(members),
                .flat = first.is_cpu() ? group.allocate(total, first.scalar_type())
                                       : at::zeros({total}, first.options().requires_grad(false)),
                .flag = {},
                .pending = 0,
                .started_ns = 0,
                .wait = nullptr};
  bucket.flag = part_of(bucket.flat, numel, {1}, {1});
  std::int64_t offset = 0;
  for (const std::size_t member : bucket.parameters) {
    Parameter& parameter = parameters[member];
    parameter.view =
        part_of(bucket.flat, offset, parameter.tensor.sizes(), strides_in_bucket(parameter.tensor));
    parameter.bucket = number;
    offset += padded_numel(parameter.tensor);
  }
  return bucket;
}

}  // namespace trireme::parallel
