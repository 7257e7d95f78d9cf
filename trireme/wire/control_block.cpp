#include "trireme/wire/control_block.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/wire/futex.h"

namespace trireme::wire {
namespace {

constexpr std::size_t kCauseBytes = 2000;
constexpr std::size_t kAllMailboxesBytes = 8 << 20;

std::size_t mailbox_stride(const BlockLayout& layout) { return sizeof(Mailbox) + layout.mailbox_bytes; }
std::size_t slot_stride(const BlockLayout& layout) {
  const std::size_t offsets = 2 * (static_cast<std::size_t>(layout.size) + 1) * sizeof(std::uint64_t);
  return round_up(sizeof(Slot) + round_up(offsets, 64) + layout.inline_bytes, kPageBytes);
}

}  // namespace

struct ControlBlock::Header {
  std::atomic<std::uint32_t> abort_state;  ///< 0: alive, 1: the cause is being written, 2: complete
  GroupError::Kind kind;
  char cause[kCauseBytes];
};

BlockLayout BlockLayout::for_size(int size) {
  BlockLayout layout{.size = size};
  const std::size_t pairs = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  while (layout.mailbox_bytes > 4096 && layout.mailbox_bytes * pairs > kAllMailboxesBytes)
    layout.mailbox_bytes /= 2;
  return layout;
}

ControlBlock::ControlBlock(std::shared_ptr<SharedMemory> memory, const BlockLayout& layout)
    : memory_(std::move(memory)), layout_(layout), slot_bytes_(slot_stride(layout)) {
  const std::size_t n = static_cast<std::size_t>(layout.size);
  slots_at_ = round_up(sizeof(Header), kPageBytes) + n * round_up(sizeof(RankArea), kPageBytes);
  pieces_at_ = slots_at_ + 2 * n * slot_bytes_;
  mailboxes_at_ = pieces_at_ + n * kPieces * layout.piece_bytes;
  if (memory_->bytes() != bytes(layout))
    throw CommError(text("the group's shared memory has ", memory_->bytes(), " bytes instead of ",
                         bytes(layout), ": the ranks run different versions of this library"));
}

std::size_t ControlBlock::bytes(const BlockLayout& layout) {
  const std::size_t n = static_cast<std::size_t>(layout.size);
  return round_up(sizeof(Header), kPageBytes) + n * round_up(sizeof(RankArea), kPageBytes) +
         2 * n * slot_stride(layout) + n * kPieces * layout.piece_bytes + n * n * mailbox_stride(layout);
}

ControlBlock::Header& ControlBlock::header() const { return *reinterpret_cast<Header*>(place(0)); }

RankArea& ControlBlock::rank(int rank) const {
  const std::size_t stride = round_up(sizeof(RankArea), kPageBytes);
  const std::size_t offset = round_up(sizeof(Header), kPageBytes) + static_cast<std::size_t>(rank) * stride;
  return *reinterpret_cast<RankArea*>(place(offset));
}

Slot& ControlBlock::slot(int rank, std::uint64_t number) const {
  const std::size_t index = static_cast<std::size_t>(rank) * 2 + number % 2;
  return *reinterpret_cast<Slot*>(place(slots_at_ + index * slot_bytes_));
}

std::uint64_t* ControlBlock::input_offsets(int rank, std::uint64_t number) const {
  return reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::byte*>(&slot(rank, number)) + sizeof(Slot));
}

std::uint64_t* ControlBlock::output_offsets(int rank, std::uint64_t number) const {
  return input_offsets(rank, number) + size() + 1;
}

std::byte* ControlBlock::slot_data(int rank, std::uint64_t number) const {
  return reinterpret_cast<std::byte*>(&slot(rank, number)) + slot_bytes_ - layout_.inline_bytes;
}

std::byte* ControlBlock::piece(int rank, std::uint64_t index) const {
  const std::size_t piece = static_cast<std::size_t>(rank) * kPieces + index % kPieces;
  return place(pieces_at_ + piece * layout_.piece_bytes);
}

Mailbox& ControlBlock::mailbox(int from, int to) const {
  const std::size_t index =
      static_cast<std::size_t>(from) * static_cast<std::size_t>(size()) + static_cast<std::size_t>(to);
  return *reinterpret_cast<Mailbox*>(place(mailboxes_at_ + index * mailbox_stride(layout_)));
}

std::byte* ControlBlock::mailbox_data(int from, int to) const {
  return reinterpret_cast<std::byte*>(&mailbox(from, to)) + sizeof(Mailbox);
}

void ControlBlock::abort(const std::string& cause, GroupError::Kind kind) const {
  std::uint32_t alive = 0;
  if (!header().abort_state.compare_exchange_strong(alive, 1)) return;
  const std::size_t length = std::min(cause.size(), kCauseBytes - 1);
  std::memcpy(header().cause, cause.data(), length);
  header().cause[length] = '\0';
  header().kind = kind;
  header().abort_state.store(2);
  for (int r = 0; r < size(); ++r) {
    rank(r).doorbell.fetch_add(1);
    futex_wake_all(rank(r).doorbell);
  }
}

// Sequentially consistent with the ranks' counters: either a visitor sees the abort, or the aborting rank
// sees the visitor.
bool ControlBlock::aborted() const { return header().abort_state.load() != 0; }

std::string ControlBlock::abort_cause() const {
  // The rank that writes the cause may die between the two steps. Then there is no text to wait for.
  for (int tries = 0; tries < 100; ++tries) {
    if (header().abort_state.load(std::memory_order_acquire) == 2) return header().cause;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "a rank died while it reported a failure of the group";
}

GroupError ControlBlock::abort_error(const std::string& group) const {
  const std::string cause = abort_cause();
  return {header().kind, group, cause};
}

void ControlBlock::ring(int rank) const {
  RankArea& area = this->rank(rank);
  if (area.sleepers.load() == 0) return;
  area.doorbell.fetch_add(1);
  futex_wake_all(area.doorbell);
}

}  // namespace trireme::wire
