#include "trireme/parallel/data/internal/bucket.h"

#include <ATen/ops/empty.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <map>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/comm/dtype.h"
#include "trireme/parallel/counted_memory.h"

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

/// A separate tensor over part of `flat`'s memory.
at::Tensor part_of(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes,
                   at::IntArrayRef strides) {
  at::Tensor part = at::empty({0}, flat.options());
  part.set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
  return part;
}

/// The memory of a place, which lives as long as the result.
c10::DataPtr memory_of(const at::Tensor& place) {
  return {place.mutable_data_ptr(), new at::Tensor(place),
          [](void* held) { delete static_cast<at::Tensor*>(held); }, place.device()};
}

/// A gradient over the memory of a place, with a separate storage.
at::Tensor view_of(const at::Tensor& place) {
  at::Tensor view = at::empty({0}, place.options());
  view.set_(c10::Storage(c10::Storage::use_byte_size_t(), place.nbytes(), memory_of(place),
                         /*allocator=*/nullptr, /*resizable=*/false),
            0, place.sizes(), place.strides());
  return view;
}

/// Moves the view and all its aliases to this memory.
void move_view(const at::Tensor& view, c10::DataPtr memory) {
  view.storage().set_data_ptr_noswap(std::move(memory));
}

/// Copies the values out of the parameter's place: its view and all aliases move to the copy.
void take_values_along(const Parameter& parameter) {
  const at::Tensor& place = parameter.place;
  at::Tensor own = at::empty({place.numel()}, place.options());
  own.copy_(part_of(place, 0, {place.numel()}, {1}));
  move_view(parameter.view, own.storage().set_data_ptr(c10::DataPtr(nullptr, own.device())));
}

/// A dense parameter keeps its strides in any memory format, so that fused kernels get one layout.
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

std::string ParameterForm::describe() const {
  std::vector<std::string> extents;
  for (const std::int64_t size : sizes) extents.push_back(std::to_string(size));
  return text("(", join(extents), ") ", comm::name_of(dtype), " on ", device.str());
}

bool is_kept(const Parameter& parameter) {
  const at::Tensor &view = parameter.view, &gradient = parameter.tensor.grad();
  if (!view.defined()) return false;
  const std::size_t own = gradient.is_same(view) ? 2 : 1;
  return view.use_count() > own || view.storage().use_count() > 1;
}

void leave_to_holders(Parameter& parameter) {
  take_values_along(parameter);
  parameter.view = view_of(parameter.place);
  parameter.reduced = false;
}

void leave_bucket(Parameter& parameter) {
  const bool has_holders = parameter.tensor.grad().is_same(parameter.view) || is_kept(parameter);
  if (parameter.view.defined() && has_holders) take_values_along(parameter);
  parameter.view.reset();
  parameter.place.reset();
  parameter.bucket = Parameter::kNoBucket;
  parameter.reduced = false;
}

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
  // A bucket is ready when its last gradient is. The buckets start in that order, not in the order of their
  // first gradients.
  std::vector<std::size_t> place(parameters.size());
  for (std::size_t i = 0; i < ready_order.size(); ++i) place[ready_order[i]] = i;
  std::ranges::sort(buckets, {}, [&](const auto& members) { return place[members.back()]; });
  return buckets;
}

void move_all(std::vector<Move> moves) {
  const auto address = [](const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr());
  };
  std::erase_if(moves, [&](const Move& move) {
    return move.to.numel() == 0 || address(move.to) == address(move.from);
  });
  std::ranges::sort(moves, {}, [&](const Move& move) { return address(move.to); });
  std::map<const std::byte*, Move*> in_place;  // moves whose values are still in their old place
  for (Move& move : moves) in_place[address(move.from)] = &move;
  for (Move& move : moves) {
    const std::byte* begin = address(move.to);
    const std::byte* end = begin + move.to.nbytes();
    auto other = in_place.lower_bound(begin);
    if (other != in_place.begin()) {
      const auto before = std::prev(other);
      if (before->first + before->second->from.nbytes() > begin) other = before;
    }
    while (other != in_place.end() && other->first < end) {
      other->second->from = other->second->from.clone();
      other = in_place.erase(other);
    }
    move.to.copy_(move.from);
    in_place.erase(address(move.from));
    move.from.reset();
  }
}

BucketMemory::Kind BucketMemory::kind_of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.device().str()};
}

BucketMemory::BucketMemory(const comm::Group& group, const std::vector<Parameter>& parameters) {
  struct Need {
    std::int64_t numel = 0;
    at::Tensor like;
  };
  std::map<Kind, Need> needs;
  for (const Parameter& parameter : parameters) {
    if (!parameter.learns) continue;
    Need& need = needs[kind_of(parameter.tensor)];
    // Every bucket has a flag, and there may be as many buckets as parameters.
    need.numel += padded_numel(parameter.tensor) + unit_of(parameter.tensor);
    need.like = parameter.tensor;
  }
  for (const auto& [kind, need] : needs) {
    memory_[kind] = group.allocate(need.numel, need.like.options().requires_grad(false));
    count_as(MemoryKind::kGradients, memory_[kind]);
  }
}

std::vector<Bucket> BucketMemory::lay_out(std::vector<Parameter>& parameters,
                                          std::vector<std::vector<std::size_t>> assignment) const {
  std::vector<Bucket> buckets;
  std::vector<Move> moves;
  std::vector<at::Tensor> gaps;  // padding after parameters, and the flags
  std::map<Kind, std::int64_t> filled;
  for (Parameter& parameter : parameters) parameter.bucket = Parameter::kNoBucket;
  for (auto& members : assignment) {
    const at::Tensor& first = parameters[members.front()].tensor;
    const at::Tensor& memory = memory_.at(kind_of(first));
    std::int64_t& offset = filled[kind_of(first)];
    const std::int64_t begin = offset;
    Bucket bucket;
    for (const std::size_t member : members) {
      Parameter& parameter = parameters[member];
      const std::int64_t numel = parameter.tensor.numel(), padded = padded_numel(parameter.tensor);
      const at::Tensor place =
          part_of(memory, offset, parameter.tensor.sizes(), strides_in_bucket(parameter.tensor));
      const bool is_there = parameter.view.defined() && parameter.tensor.grad().is_same(parameter.view);
      if (is_there) moves.push_back({parameter.place, place});
      if (!is_there && is_kept(parameter)) leave_to_holders(parameter);
      parameter.place = place;
      if (parameter.view.defined()) {
        move_view(parameter.view, memory_of(place));
      } else {
        parameter.view = view_of(place);
      }
      bucket.gradients.emplace_back(parameter.name, place);
      parameter.bucket = buckets.size();
      if (padded > numel) gaps.push_back(part_of(memory, offset + numel, {padded - numel}, {1}));
      offset += padded;
    }
    const std::int64_t unit = unit_of(first);
    gaps.push_back(part_of(memory, offset, {unit}, {1}));
    bucket.flag = part_of(memory, offset, {1}, {1});
    offset += unit;
    bucket.flat = part_of(memory, begin, {offset - begin}, {1});
    bucket.parameters = std::move(members);
    buckets.push_back(std::move(bucket));
  }
  move_all(std::move(moves));
  for (at::Tensor& gap : gaps) gap.zero_();
  return buckets;
}

void BucketMemory::move_to(const at::Tensor& memory, Bucket& bucket, std::vector<Parameter>& parameters) {
  at::Tensor(memory).copy_(bucket.flat);
  bucket.gradients.clear();
  for (const std::size_t member : bucket.parameters) {
    Parameter& parameter = parameters[member];
    const at::Tensor before = parameter.place;
    const std::int64_t offset = before.storage_offset() - bucket.flat.storage_offset();
    parameter.place = part_of(memory, offset, before.sizes(), before.strides());
    move_view(parameter.view, memory_of(parameter.place));
    bucket.gradients.emplace_back(parameter.name, parameter.place);
  }
  bucket.flag = part_of(memory, bucket.flag.storage_offset() - bucket.flat.storage_offset(), {1}, {1});
  bucket.flat = memory;
}

}  // namespace trireme::parallel
