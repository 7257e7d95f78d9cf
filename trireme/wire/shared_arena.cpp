#include "trireme/wire/shared_arena.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/memory_ledger.h"
#include "trireme/base/rounding.h"

namespace trireme::wire {
namespace {

constexpr std::size_t kAlignment = 64;
// Up to this number, a segment is as large as its first block. Each further segment adds this fraction of the
// allocated bytes, so the rest of the table suffices for any memory size.
constexpr std::size_t kSegmentsOfOneBlock = kMaxSegments / 4;
constexpr std::size_t kGrowthShare = 8;

std::shared_ptr<SharedMemory> reserve(std::size_t bytes, std::size_t with_room) {
  if (with_room > bytes) {
    try {
      return SharedMemory::create(with_room);
    } catch (const CommError&) {
      // The block alone may still fit.
    }
  }
  return SharedMemory::create(bytes);
}

}  // namespace

SharedArena::SharedArena(std::shared_ptr<const ControlBlock> block, int rank,
                         std::size_t smallest_segment_bytes)
    : block_(std::move(block)), rank_(rank), smallest_segment_bytes_(smallest_segment_bytes) {}

SharedArena::~SharedArena() {
  for (const auto& [_, segment] : segments_) retire(segment);
}

std::byte* SharedArena::allocate(std::size_t bytes) {
  bytes = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  const std::lock_guard lock(mutex_);
  std::byte* const block = place(bytes);
  MemoryLedger::of_process().add(block, bytes, MemoryKind::kCommunication);
  return block;
}

std::byte* SharedArena::place(std::size_t bytes) {
  for (auto& [base, segment] : segments_) {
    if (const auto offset = find_room(segment, bytes)) {
      segment.used[*offset] = bytes;
      return segment.memory->data() + *offset;
    }
  }
  Segment& fresh = add_segment(bytes);
  fresh.used[0] = bytes;
  return fresh.memory->data();
}

std::optional<std::size_t> SharedArena::find_room(const Segment& segment, std::size_t bytes) {
  std::size_t begin = 0;
  for (const auto& [offset, length] : segment.used) {
    if (offset - begin >= bytes) return begin;
    begin = offset + length;
  }
  if (segment.memory->bytes() - begin >= bytes) return begin;
  return std::nullopt;
}

SharedArena::Segment& SharedArena::add_segment(std::size_t bytes) {
  const std::size_t least = round_up(std::max(bytes, smallest_segment_bytes_), kPageBytes);
  Segment segment{reserve(least, round_up(std::max(least, room_to_grow()), kPageBytes)), 0, {}, false};
  publish(segment);
  const std::byte* base = segment.memory->data();
  return segments_.emplace(base, std::move(segment)).first->second;
}

std::size_t SharedArena::room_to_grow() const {
  if (segments_.size() < kSegmentsOfOneBlock) return 0;
  std::size_t held = 0;
  for (const auto& [_, segment] : segments_) held += segment.memory->bytes();
  return held / kGrowthShare;
}

void SharedArena::publish(Segment& segment) {
  auto& table = block_->rank(rank_).segments;
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    const std::uint32_t generation = table[i].generation.load();
    if (generation % 2 == 1) continue;
    table[i].descriptor = segment.memory->descriptor();
    table[i].bytes = segment.memory->bytes();
    table[i].generation.store(generation + 1);
    segment.index = i;
    return;
  }
  throw CommError(text("rank ", rank_, " has ", kMaxSegments,
                       " shared memory segments already: allocate fewer and larger tensors"));
}

void SharedArena::retire(const Segment& segment) {
  block_->rank(rank_).segments[segment.index].generation.fetch_add(1);
}

void SharedArena::free(std::byte* block) {
  const std::lock_guard lock(mutex_);
  MemoryLedger::of_process().remove(block);
  auto found = std::prev(segments_.upper_bound(block));
  Segment& segment = found->second;
  segment.used.erase(static_cast<std::size_t>(block - segment.memory->data()));
  if (!segment.used.empty() || stays(segment)) return;
  retire(segment);
  segments_.erase(found);
}

bool SharedArena::stays(const Segment& empty) const {
  if (empty.is_private || empty.memory->bytes() > round_up(smallest_segment_bytes_, kPageBytes)) return false;
  return std::none_of(segments_.begin(), segments_.end(),
                      [&](const auto& each) { return &each.second != &empty && each.second.used.empty(); });
}

std::optional<SharedArena::Location> SharedArena::locate(const std::byte* address, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto found = segments_.upper_bound(address);
  if (found == segments_.begin()) return std::nullopt;
  const Segment& segment = std::prev(found)->second;
  const auto offset = static_cast<std::size_t>(address - segment.memory->data());
  if (offset + bytes > segment.memory->bytes()) return std::nullopt;
  const std::uint32_t generation = block_->rank(rank_).segments[segment.index].generation.load();
  return Location{segment.index, generation, offset};
}

void SharedArena::make_private(const std::byte* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Segment& segment = std::prev(segments_.upper_bound(address))->second;
  segment.is_private = true;
  segment.memory->make_private(static_cast<std::size_t>(address - segment.memory->data()), bytes);
}

PeerMemory::PeerMemory(std::shared_ptr<const ControlBlock> block)
    : block_(std::move(block)), by_owner_(static_cast<std::size_t>(block_->size())) {}

std::byte* PeerMemory::segment(int owner, std::uint32_t index, std::uint32_t generation) {
  Attached& attached = by_owner_[static_cast<std::size_t>(owner)][index];
  if (attached.generation != generation || !attached.memory) {
    const RankArea& area = block_->rank(owner);
    attached.memory.reset();
    attached.memory =
        SharedMemory::attach(area.pid.load(), area.segments[index].descriptor, area.segments[index].bytes);
    attached.generation = generation;
  }
  return attached.memory->data();
}

}  // namespace trireme::wire
