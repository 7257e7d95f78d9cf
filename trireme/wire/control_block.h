#pragma once
// The memory that the ranks of a group share. Each rank has counters that only it advances, and a doorbell
// that others ring. It has two operation slots, with descriptor and room for a small input; an operation uses
// the slot of its parity. It has a staging area, and a mailbox per ordered pair. The group has one abort
// record.
//
// Two slots are enough: a rank posts operation k+2 after it has finished k+1. k+1 needed the posts of all
// ranks, and each posts k+1 after finishing k. So no rank reads slot k any more. Everything here is zero at
// first.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "trireme/wire/call.h"
#include "trireme/wire/group_error.h"
#include "trireme/wire/shared_memory.h"

namespace trireme::wire {

/// Place of a rank's input while an operation runs.
enum class Place : std::uint8_t {
  kNowhere,  ///< exposes nothing
  kInline,   ///< copied into the slot when posted
  kStaged,   ///< goes through the staging area, piece by piece
  kSegment,  ///< in memory that peers attach: read in place
  kPointer,  ///< the same, by address: ranks that are threads of one process
};

/// A rank's posted operation: compared between ranks before any data is accessed.
struct Descriptor {
  std::uint64_t number;
  std::uint64_t count;
  std::uint64_t largest_part;  ///< elements
  std::int32_t root;
  CallKind kind;
  Element element;
  Reduction reduction;
  Place place;
  std::uint32_t segment;  ///< kSegment: which of the owner's, and which use of that entry
  std::uint32_t generation;
  std::uint64_t offset;  ///< kSegment: bytes; kPointer: address
  bool unequal_parts;    ///< the slot's input offsets hold the places of the input's parts
  bool unequal_takes;    ///< the same for the output
};

/// One rank's part in an operation: its data, and the progress of its share.
struct alignas(64) Slot {
  Descriptor descriptor;
  // In-place all_reduce: blocks of this rank's share that some rank has begun, and finished.
  alignas(64) std::atomic<std::uint64_t> claimed;
  std::atomic<std::uint64_t> finished;
};

/// Counters of one rank; all but the last only grow, over all operations.
enum class Counter : std::uint8_t {
  kPosted,   ///< number of the last operation posted
  kDone,     ///< number of the last operation whose inputs this rank reads no more
  kFilled,   ///< staging pieces copied in
  kReduced,  ///< staging pieces of which this rank's share is reduced
  kTaken,    ///< staging pieces that this rank has read
  kWorking,  ///< not growing: the operation in which this rank touches others' tensors, else 0
};
/// How many counters there are: the length of arrays that a Counter indexes.
constexpr std::size_t kNumCounters = 6;

/// A segment of a rank's shared memory, for peers that want to map it.
struct SegmentEntry {
  std::atomic<std::uint32_t> generation;  ///< odd while the entry is in use
  std::int32_t descriptor;
  std::uint64_t bytes;
};
/// Segments that a rank can show to its peers at a time.
constexpr std::size_t kMaxSegments = 256;

/// A rank's state for the others; only the rank writes it, but for the doorbell, which others ring.
struct alignas(64) RankArea {
  std::array<std::atomic<std::uint64_t>, kNumCounters> counters;
  alignas(64) std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> sleepers;
  alignas(64) std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> left;  ///< this rank has shut its side down
  std::array<SegmentEntry, kMaxSegments> segments;
};

/// Bytes on their way from one rank to another: a ring with one writer and one reader.
struct alignas(64) Mailbox {
  std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
};

/// Sizes that all ranks of a group agree on.
struct BlockLayout {
  int size = 1;
  std::size_t inline_bytes = 16 << 10;
  std::size_t piece_bytes = 256 << 10;  ///< one of the kPieces pieces of a rank's staging area
  std::size_t mailbox_bytes = 64 << 10;
  /// Of a group of so many ranks: mailboxes are smaller where there are many pairs.
  static BlockLayout for_size(int size);
};
/// Pieces of a rank's staging area: one is filled while others are read.
constexpr std::size_t kPieces = 4;

class ControlBlock {
 public:
  ControlBlock(std::shared_ptr<SharedMemory> memory, const BlockLayout& layout);
  /// Bytes of memory that a block of this layout needs.
  static std::size_t bytes(const BlockLayout& layout);

  int size() const { return layout_.size; }
  const BlockLayout& layout() const { return layout_; }
  /// The parts of the block that belong to a rank, and to operation `number` of it. They live as long as the
  /// block.
  RankArea& rank(int rank) const;
  std::atomic<std::uint64_t>& counter(int rank, Counter which) const {
    return this->rank(rank).counters[static_cast<std::size_t>(which)];
  }
  Slot& slot(int rank, std::uint64_t number) const;
  /// n + 1 positions of unequal parts of the input, and of the output.
  std::uint64_t* input_offsets(int rank, std::uint64_t number) const;
  std::uint64_t* output_offsets(int rank, std::uint64_t number) const;
  std::byte* slot_data(int rank, std::uint64_t number) const;
  std::byte* piece(int rank, std::uint64_t index) const;
  Mailbox& mailbox(int from, int to) const;
  std::byte* mailbox_data(int from, int to) const;

  /// Records the reason why the group is unusable, unless there is one already, and wakes all ranks.
  void abort(const std::string& cause, GroupError::Kind kind = GroupError::Kind::kFailure) const;
  bool aborted() const;
  /// The first cause; waits briefly for one that is being written.
  std::string abort_cause() const;
  /// The error that operations of the group throw.
  GroupError abort_error(const std::string& group) const;
  /// Wakes the threads of `rank` that sleep on its doorbell.
  void ring(int rank) const;

 private:
  struct Header;
  Header& header() const;
  std::byte* place(std::size_t offset) const { return memory_->data() + offset; }
  std::shared_ptr<SharedMemory> memory_;
  BlockLayout layout_;
  std::size_t slot_bytes_;
  std::size_t slots_at_;
  std::size_t pieces_at_;
  std::size_t mailboxes_at_;
};

}  // namespace trireme::wire
