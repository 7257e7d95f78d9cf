#pragma once
// Runs one collective call of a rank through the control block. Three ways, chosen from the descriptors that
// all ranks have posted, so all choose alike:
//   in place    all_reduce of tensors that all ranks can address: each rank's share is cut into blocks. A
//   free
//               rank claims a block, reduces it over all ranks' tensors and writes the result into all of
//               them. A rank without a core does not delay others. Bytes moved: read n, written n per
//               element.
//   two halves  all_reduce of private tensors: pieces are staged, each rank reduces its share of a piece, all
//               copy the whole out.
//   pull        the rest: each rank takes its parts where the others expose them: their tensor, their
//               slot (small inputs: one synchronisation in all), or piece by piece their staging area.
// Sums run in rank order everywhere: all ranks get the same bits, by each of the three ways.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/wire/call.h"
#include "trireme/wire/control_block.h"
#include "trireme/wire/shared_arena.h"
#include "trireme/wire/waiter.h"

namespace trireme::wire {

/// Distance between data that ranks write separately, so that no two share a line of the cache.
inline constexpr std::size_t kCacheLineBytes = 64;

/// As long as it lives, `rank` may access others' tensors in the operation: a rank that abandons it waits for
/// that.
class Visit {
 public:
  Visit(const ControlBlock& block, int rank, std::uint64_t number)
      : working_(block.counter(rank, Counter::kWorking)) {
    working_.store(number);
  }
  ~Visit() { working_.store(0); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  std::atomic<std::uint64_t>& working_;
};

class Collectives {
 public:
  /// `arena` may be null: then no tensor is recognised as shared.
  Collectives(std::shared_ptr<const ControlBlock> block, Waiter& waiter, std::shared_ptr<SharedArena> arena);

  /// Tells the group about the call; does not wait. The call before has to be finished.
  void post(const Call& call, std::uint64_t number);
  /// True when run() would find the posts of all ranks.
  bool all_posted(std::uint64_t number) const { return waiter_.all_reached(Counter::kPosted, number); }
  /// Ends with the result in place. Throws CommError; the group is aborted then, or this rank leaves it.
  void run(const Call& call, std::uint64_t number, const Wait& wait);
  /// For an operation that was posted and has failed here: afterwards no other rank touches this rank's
  /// tensors for it, even one that has been frozen in the middle. Aborts the group where that takes it.
  void retreat(const Call& call, std::uint64_t number);
  /// Bytes that this rank exposes.
  static std::size_t input_bytes(const Call& call, const CallShape& shape);

 private:
  struct Exposed {
    const Descriptor* descriptor;
    const std::byte* base;  ///< null for staged ones, and before attach_sources()
  };
  struct Range {
    std::uint64_t begin;
    std::uint64_t end;
  };

  /// A staged piece of an all_reduce: its place in the tensor, and this rank's share inside it.
  struct StagedPiece {
    std::uint64_t begin;
    std::uint64_t length;
    Range share;
  };

  Place choose_place(const Call& call, std::size_t bytes, Descriptor& descriptor) const;
  void copy_input(const Call& call, const CallShape& shape, std::byte* to) const;
  void compare(const Call& call, std::uint64_t number) const;
  void compare_parts(std::uint64_t number) const;
  std::string describe(const Descriptor& descriptor, bool with_reduction) const;
  void find_sources(std::uint64_t number);
  void attach_sources(const Call& call, std::uint64_t number);
  const std::byte* attach_segment(int owner, const Descriptor& descriptor);
  bool any_source(Place place) const;

  void take_from_tensors(const Call& call, const CallShape& shape, std::uint64_t number, const Wait& wait);
  bool visited(std::uint64_t number) const;
  void reduce_in_place(const Call& call, std::uint64_t number, const Wait& wait);
  void reduce_blocks(const Call& call, std::uint64_t number);
  void reduce_block(const Call& call, int owner, std::uint64_t block);
  bool all_blocks_finished(const Call& call, std::uint64_t number) const;
  StagedPiece staged_piece(const Call& call, std::uint64_t piece) const;
  void copy_but_share(const Call& call, const StagedPiece& piece, std::byte* to, const std::byte* from) const;
  void reduce_share(const Call& call, const StagedPiece& piece, std::uint64_t index);
  void reduce_in_two_halves(const Call& call, const Wait& wait);
  void pull_staged(const Call& call, const CallShape& shape, std::uint64_t number, const Wait& wait);
  void fill_piece(const Call& call, const CallShape& shape, std::uint64_t piece, std::uint64_t elements,
                  const Wait& wait);
  void take(const Call& call, const CallShape& shape, std::uint64_t number, Range range, std::uint64_t piece,
            std::uint64_t piece_elements);
  const std::byte* source_at(const Call& call, int source, std::size_t part, std::uint64_t number,
                             Range range, std::uint64_t piece, std::uint64_t piece_elements) const;
  Range part_of(int source, std::size_t part, std::uint64_t number) const;

  std::shared_ptr<const ControlBlock> block_;
  Waiter& waiter_;
  std::shared_ptr<SharedArena> arena_;
  PeerMemory peer_memory_;
  const int rank_;
  const int size_;
  std::uint64_t pieces_used_ = 0;  ///< staging pieces of all operations so far; the same on all ranks
  std::vector<Exposed> sources_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

}  // namespace trireme::wire
