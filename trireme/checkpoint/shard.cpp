#include "trireme/checkpoint/shard.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

std::int64_t product(at::IntArrayRef sizes) {
  std::int64_t result = 1;
  for (const std::int64_t size : sizes) result *= size;
  return result;
}

/// Splits a range of a row-major tensor into boxes, dim by dim. `prefix` are the indices chosen so far;
/// `begin` and `end` count elements after them.
void add_flat_range(at::IntArrayRef sizes, const std::vector<std::int64_t>& prefix, std::int64_t begin,
                    std::int64_t end, std::vector<Box>& boxes) {
  if (begin >= end) return;
  const auto dim = prefix.size();
  const auto box_of_rows = [&](std::int64_t first, std::int64_t last) {
    Box box{.offsets = prefix, .sizes = std::vector<std::int64_t>(dim, 1)};
    if (dim == sizes.size()) return box;
    box.offsets.push_back(first);
    box.sizes.push_back(last - first);
    for (std::size_t inner = dim + 1; inner < sizes.size(); ++inner) {
      box.offsets.push_back(0);
      box.sizes.push_back(sizes[inner]);
    }
    return box;
  };
  if (dim == sizes.size()) return boxes.push_back(box_of_rows(0, 1));
  const std::int64_t row = product(sizes.slice(dim + 1));
  const auto inside = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    std::vector<std::int64_t> deeper = prefix;
    deeper.push_back(index);
    add_flat_range(sizes, deeper, from, to, boxes);
  };
  const std::int64_t first = begin / row, last = end / row;
  if (first == last) return inside(first, begin % row, end % row);
  const std::int64_t first_whole = begin % row == 0 ? first : first + 1;
  if (first_whole != first) inside(first, begin % row, row);
  if (first_whole < last) boxes.push_back(box_of_rows(first_whole, last));
  inside(last, 0, end % row);
}

}  // namespace

std::int64_t Box::numel() const { return product(sizes); }

Box whole_box(at::IntArrayRef sizes) {
  return {.offsets = std::vector<std::int64_t>(sizes.size(), 0), .sizes = sizes.vec()};
}

std::optional<Box> overlap(const Box& a, const Box& b) {
  require(a.sizes.size() == b.sizes.size(), "boxes ", describe(a), " and ", describe(b),
          " are not of one tensor");
  Box common;
  for (std::size_t dim = 0; dim < a.sizes.size(); ++dim) {
    const std::int64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    const std::int64_t end = std::min(a.offsets[dim] + a.sizes[dim], b.offsets[dim] + b.sizes[dim]);
    if (begin >= end) return std::nullopt;
    common.offsets.push_back(begin);
    common.sizes.push_back(end - begin);
  }
  return common;
}

bool lies_in(const Box& box, at::IntArrayRef sizes) {
  if (box.offsets.size() != sizes.size() || box.sizes.size() != sizes.size()) return false;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    const std::int64_t offset = box.offsets[dim], size = box.sizes[dim];
    if (offset < 0 || size < 0 || size > sizes[dim] || offset > sizes[dim] - size) return false;
  }
  return true;
}

std::string describe(const Box& box) {
  std::vector<std::string> ranges;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim)
    ranges.push_back(text(box.offsets[dim], ":", box.offsets[dim] + box.sizes[dim]));
  return text("[", join(ranges, ","), "]");
}

at::Tensor view_of(const at::Tensor& tensor, const Box& of, const Box& box) {
  at::Tensor view = tensor;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim)
    view = view.narrow(static_cast<std::int64_t>(dim), box.offsets[dim] - of.offsets[dim], box.sizes[dim]);
  return view;
}

std::vector<Box> pieces_of(const Box& box, std::size_t element_bytes, std::uint64_t most_bytes) {
  if (box.numel() == 0) return {};
  const auto most = std::max<std::int64_t>(1, static_cast<std::int64_t>(most_bytes / element_bytes));
  // The first dims are split into single indices and one dim into runs. The dims after it stay whole.
  std::size_t cut = 0;
  std::int64_t row = box.numel();
  for (; cut < box.sizes.size() && row > most; ++cut) row /= box.sizes[cut];
  if (cut == 0) return {box};
  const std::size_t dim = cut - 1;
  const std::int64_t run = std::max<std::int64_t>(1, most / row);
  std::vector<Box> pieces;
  Box piece = box;
  std::fill_n(piece.sizes.begin(), dim, 1);
  for (;;) {
    for (std::int64_t begin = 0; begin < box.sizes[dim]; begin += run) {
      piece.offsets[dim] = box.offsets[dim] + begin;
      piece.sizes[dim] = std::min(run, box.sizes[dim] - begin);
      pieces.push_back(piece);
    }
    std::size_t outer = dim;
    for (; outer > 0; --outer) {
      if (++piece.offsets[outer - 1] < box.offsets[outer - 1] + box.sizes[outer - 1]) break;
      piece.offsets[outer - 1] = box.offsets[outer - 1];
    }
    if (outer == 0) return pieces;
  }
}

std::vector<Box> boxes_of_flat_range(at::IntArrayRef sizes, std::int64_t begin, std::int64_t end) {
  const std::int64_t numel = product(sizes);
  require(begin >= 0 && begin <= end, "the flat range ", begin, " to ", end, " is none");
  std::vector<Box> boxes;
  add_flat_range(sizes, {}, std::min(begin, numel), std::min(end, numel), boxes);
  return boxes;
}

void Place::set(const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  offloaded_storage ? offloaded_storage->put(tensor, values)
                    : static_cast<void>(at::Tensor(tensor).copy_(values));
}

Place Shard::place_of(const Box& part) const {
  return {.tensor = view_of(tensor, box(), part), .offloaded_storage = offloaded_storage};
}

Place place_in(const Shards& shards, const std::string& name, const Box& of, const Box& box) {
  const auto found = std::ranges::find_if(
      shards, [&](const Shard& shard) { return shard.name == name && shard.box() == of; });
  return found == shards.end() ? Place() : found->place_of(box);
}

Shard whole_shard(std::string name, at::Tensor tensor) {
  Shard shard{.name = std::move(name), .global_sizes = tensor.sizes().vec(), .offsets = {}, .tensor = {}};
  shard.offsets.assign(shard.global_sizes.size(), 0);
  shard.tensor = std::move(tensor);
  return shard;
}

Shards whole_shards(const TensorMap& tensors) {
  Shards shards;
  for (const auto& [name, tensor] : tensors) shards.push_back(whole_shard(name, tensor));
  return shards;
}

}  // namespace trireme::checkpoint
