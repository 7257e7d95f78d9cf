// The two algorithms of an all_reduce that does not fit into the slots.

#include <algorithm>
#include <cstring>
#include <utility>

#include "trireme/base/rounding.h"
#include "trireme/wire/collectives.h"
#include "trireme/wire/reduce.h"

namespace trireme::wire {
namespace {

constexpr std::size_t kBlockBytes = 64 << 10;  ///< of an in-place all_reduce: stays in the L2 cache

/// Elements of one rank's share of an in-place all_reduce: whole cache lines.
std::uint64_t share_elements(const Call& call, int size) {
  return round_up(divide_up(call.count, static_cast<std::uint64_t>(size)),
                  kCacheLineBytes / bytes_of(call.element));
}

std::uint64_t block_elements(const Call& call) { return kBlockBytes / bytes_of(call.element); }

std::uint64_t num_blocks(const Call& call, int size, int owner) {
  const std::uint64_t share = share_elements(call, size);
  const std::uint64_t begin = std::min(share * static_cast<std::uint64_t>(owner), call.count);
  return divide_up(std::min(begin + share, call.count) - begin, block_elements(call));
}

}  // namespace

// ---- in place ----

void Collectives::reduce_in_place(const Call& call, std::uint64_t number, const Wait& wait) {
  reduce_blocks(call, number);
  waiter_.wait_until(
      wait, [&] { return all_blocks_finished(call, number); },
      [&](int r) { return block_->counter(r, Counter::kWorking).load() == number; });
  // A rank that abandons an operation reuses its tensor: results reduced after that are invalid.
  waiter_.throw_if_aborted();
}

/// Claims and reduces blocks until all are claimed.
void Collectives::reduce_blocks(const Call& call, std::uint64_t number) {
  const Visit visit(*block_, rank_, number);
  bool attached = false;
  for (int i = 0; i < size_; ++i) {
    const int owner = (rank_ + i) % size_;
    Slot& slot = block_->slot(owner, number);
    const std::uint64_t blocks = num_blocks(call, size_, owner);
    while (slot.claimed.load(std::memory_order_relaxed) < blocks) {
      const std::uint64_t block = slot.claimed.fetch_add(1);
      if (block >= blocks) break;
      waiter_.throw_if_aborted();
      // Attached here, because no rank can finish before this block is done.
      if (!std::exchange(attached, true)) attach_sources(call, number);
      reduce_block(call, owner, block);
      if (slot.finished.fetch_add(1) + 1 == blocks && all_blocks_finished(call, number)) waiter_.ring_all();
    }
  }
}

void Collectives::reduce_block(const Call& call, int owner, std::uint64_t block) {
  const std::uint64_t share = share_elements(call, size_);
  const std::uint64_t share_begin = share * static_cast<std::uint64_t>(owner);
  const std::uint64_t begin = share_begin + block * block_elements(call);
  const std::uint64_t end = std::min({begin + block_elements(call), share_begin + share, call.count});
  inputs_.clear();
  outputs_.clear();
  for (const Exposed& source : sources_) {
    const std::byte* at = source.base + begin * bytes_of(call.element);
    inputs_.push_back(at);
    outputs_.push_back(const_cast<std::byte*>(at));
  }
  reduce(call.element, call.reduction, inputs_, outputs_, end - begin);
}

bool Collectives::all_blocks_finished(const Call& call, std::uint64_t number) const {
  for (int owner = 0; owner < size_; ++owner)
    if (block_->slot(owner, number).finished.load() < num_blocks(call, size_, owner)) return false;
  return true;
}

// ---- in two halves ----

Collectives::StagedPiece Collectives::staged_piece(const Call& call, std::uint64_t piece) const {
  const std::uint64_t per_piece = block_->layout().piece_bytes / bytes_of(call.element);
  const std::uint64_t begin = piece * per_piece;
  const std::uint64_t length = std::min(per_piece, call.count - begin);
  const std::uint64_t share = round_up(divide_up(length, static_cast<std::uint64_t>(size_)),
                                       kCacheLineBytes / bytes_of(call.element));
  const std::uint64_t share_begin = std::min(share * static_cast<std::uint64_t>(rank_), length);
  return {begin, length, {share_begin, std::min(share_begin + share, length)}};
}

/// Copies all of a piece except this rank's share, which no other rank reads.
void Collectives::copy_but_share(const Call& call, const StagedPiece& piece, std::byte* to,
                                 const std::byte* from) const {
  const std::size_t element_bytes = bytes_of(call.element);
  std::memcpy(to, from, piece.share.begin * element_bytes);
  std::memcpy(to + piece.share.end * element_bytes, from + piece.share.end * element_bytes,
              (piece.length - piece.share.end) * element_bytes);
}

void Collectives::reduce_share(const Call& call, const StagedPiece& piece, std::uint64_t index) {
  const std::size_t element_bytes = bytes_of(call.element);
  const std::size_t offset = piece.share.begin * element_bytes;
  inputs_.clear();
  for (int s = 0; s < size_; ++s)
    inputs_.push_back(s == rank_ ? call.input + piece.begin * element_bytes + offset
                                 : block_->piece(s, index) + offset);
  std::byte* targets[] = {block_->piece(0, index) + offset,
                          call.output + piece.begin * element_bytes + offset};
  if (piece.share.end > piece.share.begin)
    reduce(call.element, call.reduction, inputs_, targets, piece.share.end - piece.share.begin);
}

void Collectives::reduce_in_two_halves(const Call& call, const Wait& wait) {
  const std::size_t element_bytes = bytes_of(call.element);
  const std::uint64_t pieces = divide_up(call.count, block_->layout().piece_bytes / element_bytes);
  const std::uint64_t before = pieces_used_;
  const auto fill = [&](std::uint64_t k) {
    const std::uint64_t index = before + k;
    if (index >= kPieces) waiter_.wait_all(Counter::kTaken, index - kPieces + 1, wait);
    const StagedPiece piece = staged_piece(call, k);
    copy_but_share(call, piece, block_->piece(rank_, index), call.input + piece.begin * element_bytes);
    waiter_.advance(Counter::kFilled, index + 1);
  };
  fill(0);
  for (std::uint64_t k = 0; k <= pieces; ++k) {
    if (k + 1 < pieces) fill(k + 1);
    if (k < pieces) {
      waiter_.wait_all(Counter::kFilled, before + k + 1, wait);
      reduce_share(call, staged_piece(call, k), before + k);
      waiter_.advance(Counter::kReduced, before + k + 1);
    }
    if (k == 0) continue;
    waiter_.wait_all(Counter::kReduced, before + k, wait);
    const StagedPiece piece = staged_piece(call, k - 1);
    copy_but_share(call, piece, call.output + piece.begin * element_bytes, block_->piece(0, before + k - 1));
    waiter_.advance(Counter::kTaken, before + k);
  }
  pieces_used_ += pieces;
}

}  // namespace trireme::wire
