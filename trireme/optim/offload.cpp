#include "trireme/optim/offload.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/memory_ledger.h"
#include "trireme/optim/internal/kept_bytes.h"

namespace trireme::optim {
namespace {

/// Alignment of tensors in files and buffers: whole cache lines.
constexpr std::int64_t kLine = 64;

std::int64_t to_lines(std::int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

const void* key_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// Elements from the first to the last in memory, including gaps.
std::int64_t span_of(const at::Tensor& view) {
  if (view.numel() == 0) return 0;
  std::int64_t span = 1;
  for (std::int64_t dim = 0; dim < view.dim(); ++dim) span += (view.size(dim) - 1) * view.stride(dim);
  return span;
}

std::int64_t bytes_of(const at::Tensor& view) {
  return span_of(view) * static_cast<std::int64_t>(view.element_size());
}

std::int64_t bytes_of(const Offload::Part& part) {
  return std::accumulate(
      part.begin(), part.end(), std::int64_t{0},
      [](std::int64_t sum, const at::Tensor& view) { return sum + to_lines(bytes_of(view)); });
}

std::span<std::byte> bytes_in(const at::Tensor& memory, std::int64_t begin, std::int64_t count) {
  auto* first = static_cast<std::byte*>(memory.mutable_data_ptr());
  return {first + begin, static_cast<std::size_t>(count)};
}

/// Host memory for a view's elements, in the order of their memory.
at::Tensor room_for(const at::Tensor& view) {
  return at::empty({span_of(view)}, at::TensorOptions(view.scalar_type()));
}

void finish(std::future<void>& work) {
  if (work.valid()) std::exchange(work, {}).get();
}

}  // namespace

Offload::Offload(Options options)
    : options_(std::move(options)), to_device_(options_.device), from_device_(options_.device) {}
Offload::~Offload() = default;

std::vector<at::Tensor> Offload::make(Purpose purpose, const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> holders;
  std::int64_t bytes = 0;
  for (const at::Tensor& each : like) {
    holders.push_back(at::empty_like(each, each.options().device(at::kMeta).requires_grad(false)));
    bytes += to_lines(bytes_of(holders.back()));
  }
  std::unique_ptr<KeptBytes>& kept = kept_[purpose];
  if (!kept) {
    const bool is_state = purpose == Purpose::kState;
    kept = make_kept_bytes({.place = is_state ? options_.state : options_.parameters,
                            .folder = options_.folder,
                            .owner = options_.owner,
                            .purpose = is_state ? "the optimizer's state" : "shards of the parameters",
                            .device = options_.device});
  }
  std::uint64_t offset = kept->bytes();
  kept->reserve(offset + static_cast<std::uint64_t>(bytes));
  for (const at::Tensor& holder : holders) {
    homes_.emplace(key_of(holder), Home{.holder = holder, .kept = kept.get(), .offset = offset});
    offset += static_cast<std::uint64_t>(to_lines(bytes_of(holder)));
  }
  return holders;
}

bool Offload::has(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.is_meta() && homes_.contains(key_of(tensor));
}

const Offload::Home& Offload::home_of(const at::Tensor& view) const {
  require(has(view), "a tensor of ", view.sizes(), " is not offloaded, of ", options_.owner);
  return homes_.at(key_of(view));
}

std::uint64_t Offload::offset_of(const at::Tensor& view) const {
  return home_of(view).offset + static_cast<std::uint64_t>(view.storage_offset()) * view.element_size();
}

void Offload::require_valid(const at::Tensor& view) const {
  const std::lock_guard lock(mutex_);
  if (!lost_.contains(key_of(view))) return;
  throw DataError(text(options_.owner,
                       ": an update of offloaded tensors has failed and is incomplete; resume from a "
                       "checkpoint"));
}

at::Tensor Offload::fetch(const at::Tensor& view) const {
  const Home& home = home_of(view);
  require_valid(view);
  wait_for_device();
  const at::Tensor room = room_for(view);
  home.kept->read(offset_of(view), bytes_in(room, 0, bytes_of(view)));
  return room.as_strided(view.sizes(), view.strides(), 0);
}

void Offload::put(const at::Tensor& view, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const Home& home = home_of(view);
  wait_for_device();
  const at::Tensor room = room_for(view);
  // A view with gaps: the elements of other tensors in between must keep their values.
  if (view.numel() < room.numel()) home.kept->read(offset_of(view), bytes_in(room, 0, bytes_of(view)));
  room.as_strided(view.sizes(), view.strides(), 0).copy_(values);
  home.kept->write(offset_of(view), bytes_in(room, 0, bytes_of(view)));
  const std::lock_guard lock(mutex_);
  const auto lost = lost_.find(key_of(view));
  if (lost == lost_.end()) return;
  lost->second -= static_cast<std::int64_t>(view.numel() * view.element_size());
  if (lost->second <= 0) lost_.erase(lost);
}

/// Merges ranges that are contiguous both in the file and in the buffer.
std::vector<Offload::Segment> Offload::segments_of(const Part& part) const {
  std::vector<Segment> segments;
  std::int64_t place = 0;
  for (const at::Tensor& view : part) {
    const Segment next{
        .kept = home_of(view).kept, .offset = offset_of(view), .place = place, .bytes = bytes_of(view)};
    place += to_lines(next.bytes);
    const bool follows = !segments.empty() && segments.back().kept == next.kept &&
                         next.offset - segments.back().offset ==
                             static_cast<std::uint64_t>(next.place - segments.back().place);
    if (follows) {
      segments.back().bytes = next.place + next.bytes - segments.back().place;
    } else {
      segments.push_back(next);
    }
  }
  return segments;
}

void Offload::make_room(const std::vector<Part>& parts) {
  std::int64_t largest = 0;
  for (const Part& part : parts) largest = std::max(largest, bytes_of(part));
  const bool passes_memory = options_.device.is_cpu() || !all_in_memory();
  const auto is_enough = [&](const at::Tensor& room) { return room.defined() && room.numel() >= largest; };
  const std::size_t needed = std::min(kNumSlots, parts.size());
  for (std::size_t i = 0; i < needed; ++i) {
    Slot& slot = slots_[i];
    if (is_enough(slot.on_device) && (!passes_memory || is_enough(slot.memory))) continue;
    slot.memory = slot.on_device = at::Tensor();  // freed before the new one is allocated
    if (passes_memory) slot.memory = at::empty({largest}, at::kByte);
    slot.on_device = options_.device.is_cpu()
                         ? slot.memory
                         : at::empty({largest}, at::TensorOptions(at::kByte).device(options_.device));
    for (const batch::CopyStream* stream : {&to_device_, &from_device_}) stream->lend(slot.on_device);
    if (passes_memory) MemoryLedger::of_process().name(slot.memory.const_data_ptr(), MemoryKind::kOptimizer);
  }
}

bool Offload::all_in_memory() const {
  return std::ranges::all_of(kept_, [](const auto& each) { return each.second->in_memory(); });
}

/// Copies state in host memory without a wait for the device. A copy to the device waits for the copy that
/// empties the buffer.
void Offload::copy_kept(Slot& slot, Way way) {
  const bool comes = way == Way::kToDevice;
  if (comes) to_device_.wait_for(slot.left);
  batch::CopyStream& copies = comes ? to_device_ : from_device_;
  copies.run([&] {
    for (const Segment& each : slot.segments) {
      std::int64_t place = each.place;
      for (const at::Tensor& kept : each.kept->memory(each.offset, static_cast<std::uint64_t>(each.bytes))) {
        const at::Tensor room = slot.on_device.narrow(0, place, kept.numel());
        device_copies_ = !options_.device.is_cpu();
        comes ? room.copy_(kept, /*non_blocking=*/true) : kept.copy_(room, /*non_blocking=*/true);
        place += kept.numel();
      }
    }
  });
  (comes ? slot.came : slot.left) = copies.mark();
}

/// Copies state in files between the device and the host buffer.
void Offload::copy_buffer(const Slot& slot, Way way) {
  if (slot.on_device.is_same(slot.memory)) return;
  for (const Segment& each : slot.segments) {
    if (each.kept->in_memory()) continue;
    const at::Tensor room = slot.on_device.narrow(0, each.place, each.bytes);
    const at::Tensor buffer = slot.memory.narrow(0, each.place, each.bytes);
    way == Way::kToDevice ? room.copy_(buffer) : buffer.copy_(room);
  }
}

void Offload::start_read(Slot& slot, const Part& part) {
  finish(slot.writing);
  for (const at::Tensor& view : part) require_valid(view);
  slot.segments = segments_of(part);
  copy_kept(slot, Way::kToDevice);
  if (all_in_memory()) return;
  slot.reading = reader_.start([&slot] {
    for (const Segment& each : slot.segments) {
      if (!each.kept->in_memory())
        each.kept->read(each.offset, bytes_in(slot.memory, each.place, each.bytes));
    }
  });
}

void Offload::start_write(Slot& slot) {
  copy_kept(slot, Way::kFromDevice);
  if (all_in_memory()) return;
  copy_buffer(slot, Way::kFromDevice);
  slot.writing = writer_.start([&slot] {
    for (const Segment& each : slot.segments) {
      if (!each.kept->in_memory())
        each.kept->write(each.offset, bytes_in(slot.memory, each.place, each.bytes));
    }
  });
}

void Offload::wait_for_device() const {
  if (!device_copies_.exchange(false)) return;
  c10::impl::VirtualGuardImpl(options_.device.type()).synchronizeDevice(options_.device.index());
}

Offload::Part Offload::brought(const Slot& slot, const Part& part) const {
  Part tensors;
  std::int64_t place = 0;
  for (const at::Tensor& view : part) {
    const at::Tensor run = slot.on_device.narrow(0, place, bytes_of(view)).view(view.scalar_type());
    tensors.push_back(run.as_strided(view.sizes(), view.strides(), run.storage_offset()));
    place += to_lines(bytes_of(view));
  }
  return tensors;
}

/// Waits until no thread reads or writes the buffers. For use after an error, which is reported already.
void Offload::settle() noexcept {
  for (Slot& slot : slots_) {
    for (std::future<void>* work : {&slot.reading, &slot.writing}) {
      if (work->valid()) work->wait();
      *work = {};
    }
  }
}

void Offload::pass(const std::vector<Part>& parts,
                   const std::function<void(std::size_t part, const Part& brought)>& update) {
  const auto slot_of = [&](std::size_t part) -> Slot& { return slots_[part % kNumSlots]; };
  to_device_.wait_for(from_device_.mark());  // parts may differ from those of the previous pass
  start_read(slot_of(0), parts[0]);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i + 1 < parts.size()) start_read(slot_of(i + 1), parts[i + 1]);
    Slot& slot = slot_of(i);
    finish(slot.reading);
    to_device_.join(slot.came);
    if (slot.memory.defined()) copy_buffer(slot, Way::kToDevice);
    update(i, brought(slot, parts[i]));
    start_write(slot);
  }
  for (Slot& slot : slots_) finish(slot.writing);
}

void Offload::in_parts(const std::vector<Part>& parts,
                       const std::function<void(std::size_t part, const Part& brought)>& update) {
  if (parts.empty()) return;
  const at::NoGradGuard no_grad;
  make_room(parts);
  try {
    pass(parts, update);
  } catch (...) {
    settle();
    const std::lock_guard lock(mutex_);
    for (const Part& part : parts) {
      for (const at::Tensor& view : part) {
        const at::Tensor& holder = home_of(view).holder;
        lost_[key_of(view)] = static_cast<std::int64_t>(holder.numel() * holder.element_size());
      }
    }
    throw;
  }
}

std::int64_t Offload::offloaded_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [key, home] : homes_) bytes += bytes_of(home.holder);
  return bytes;
}

std::int64_t Offload::buffer_bytes() const {
  std::int64_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.on_device.defined() ? slot.on_device.numel() : 0;
  return bytes;
}

}  // namespace trireme::optim
