#pragma once
// A shard is a box of a named tensor: sizes of the whole tensor, where the box begins in it, and a tensor
// that holds the box. A whole tensor is the trivial shard. All tensors that are saved, loaded or passed
// between ranks are named so, for any mesh. The common part of two sides is the overlap of their boxes. A
// flat range of a tensor is a few boxes (boxes_of_flat_range). Values; thread-safe.
//
// A shard's values may be offloaded: its tensor is one of the meta device then. They are read and written
// view by view, so that never more than a piece is in memory.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// Of the elements of a tensor, one offset and size per dim; of a tensor without dims: its one element.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;

  std::int64_t numel() const;
  friend bool operator==(const Box&, const Box&) = default;
  friend auto operator<=>(const Box&, const Box&) = default;
};

/// The box of a whole tensor of those sizes.
Box whole_box(at::IntArrayRef sizes);
/// Empty where they have no element in common.
std::optional<Box> overlap(const Box& a, const Box& b);
/// Whether the box is inside a tensor of those sizes.
bool lies_in(const Box& box, at::IntArrayRef sizes);
/// "[0:4,8:16]"; "[]" without dims.
std::string describe(const Box& box);
/// `tensor` holds `of`: the view of its part that holds `box`, which is in `of`.
at::Tensor view_of(const at::Tensor& tensor, const Box& of, const Box& box);
/// In the order of their elements, pieces of `box` of at most `most_bytes` each, or of one element.
std::vector<Box> pieces_of(const Box& box, std::size_t element_bytes, std::uint64_t most_bytes);
/// The elements `begin` to `end` - 1 of a tensor in row-major order, as boxes in that order: each is
/// contiguous in the flat range. Padding after the last element belongs to no box.
std::vector<Box> boxes_of_flat_range(at::IntArrayRef sizes, std::int64_t begin, std::int64_t end);

/// Storage of the values of offloaded tensors. May be called on any thread while the values do not change.
struct OffloadedStorage {
  /// A copy of the values of a view, in the memory of the host.
  std::function<at::Tensor(const at::Tensor& view)> fetch;
  std::function<void(const at::Tensor& view, const at::Tensor& values)> put;
};

/// A tensor, or a view of one, and the storage of its values; null: the tensor itself.
struct Place {
  at::Tensor tensor;
  std::shared_ptr<const OffloadedStorage> offloaded_storage = nullptr;

  at::Tensor values() const { return offloaded_storage ? offloaded_storage->fetch(tensor) : tensor; }
  /// Copies, from any device.
  void set(const at::Tensor& values) const;
};

/// Whether all ranks that hold a shard hold the same numbers.
enum class Replicas {
  kEqual,
  kFirstCounts,  ///< no: those of the first rank are taken for all
};

struct Shard {
  std::string name;
  std::vector<std::int64_t> global_sizes;
  std::vector<std::int64_t> offsets;
  at::Tensor tensor;  ///< shared, not copied
  Replicas replicas = Replicas::kEqual;
  std::shared_ptr<const OffloadedStorage> offloaded_storage = nullptr;  ///< null: the values are the tensor's

  /// Of its part that holds `box`, which is in its own.
  Place place_of(const Box& box) const;
  Box box() const { return {.offsets = offsets, .sizes = tensor.sizes().vec()}; }
  bool is_whole() const { return tensor.sizes() == at::IntArrayRef(global_sizes); }
};
using Shards = std::vector<Shard>;

/// Of the shard of that name whose box is `of`, the part that holds `box`; no tensor where there is none.
Place place_in(const Shards& shards, const std::string& name, const Box& of, const Box& box);

/// A shard that is all of the tensor, which it shares.
Shard whole_shard(std::string name, at::Tensor tensor);
Shards whole_shards(const TensorMap& tensors);

}  // namespace trireme::checkpoint
