#pragma once
// Memory of one rank that its peers can read and write in place: a growing set of shared segments with room
// for many blocks. Peers find a segment through the owner's table in the control block. The table is no limit
// to the number of blocks: as it fills, new segments are larger in proportion to the allocated bytes.
// Thread-safe.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "trireme/wire/control_block.h"

namespace trireme::wire {

class SharedArena {
 public:
  static constexpr std::size_t kSmallestSegmentBytes = 4 << 20;

  SharedArena(std::shared_ptr<const ControlBlock> block, int rank,
              std::size_t smallest_segment_bytes = kSmallestSegmentBytes);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// A block aligned to 64 bytes; its content is undefined. Throws CommError when there is no memory or the
  /// table of segments is full.
  std::byte* allocate(std::size_t bytes);
  /// Gives a block of allocate() back. A segment without blocks is freed, except one of the smallest size: a
  /// block that is taken for each operation would else map new memory in all ranks each time.
  void free(std::byte* block);

  /// A place in one of the arena's segments, in the form for peers; `generation` is that of the segment's
  /// entry.
  struct Location {
    std::uint32_t segment;
    std::uint32_t generation;
    std::uint64_t offset;
  };
  /// The place of [address, address + bytes); empty when it is not all in one segment.
  std::optional<Location> locate(const std::byte* address, std::size_t bytes) const;
  /// Makes [address, address + bytes), which is in one segment, private to this process, with its content.
  /// Later writes of peers there go elsewhere. Permanent; to whole pages.
  void make_private(const std::byte* address, std::size_t bytes);

 private:
  struct Segment {
    std::shared_ptr<SharedMemory> memory;
    std::uint32_t index;
    std::map<std::size_t, std::size_t> used;  ///< offset -> bytes
    bool is_private = false;                  ///< in part
  };
  std::byte* place(std::size_t bytes);
  static std::optional<std::size_t> find_room(const Segment& segment, std::size_t bytes);
  Segment& add_segment(std::size_t bytes);
  std::size_t room_to_grow() const;
  void publish(Segment& segment);
  void retire(const Segment& segment);
  bool stays(const Segment& empty) const;

  const std::shared_ptr<const ControlBlock> block_;
  const int rank_;
  const std::size_t smallest_segment_bytes_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, Segment> segments_;  ///< by first address
};

/// Segments of peers, attached when first needed and kept. One thread at a time.
class PeerMemory {
 public:
  explicit PeerMemory(std::shared_ptr<const ControlBlock> block);
  /// First byte of a peer's segment in this process. Throws CommError when it cannot be attached.
  std::byte* segment(int owner, std::uint32_t index, std::uint32_t generation);

 private:
  struct Attached {
    std::uint32_t generation = 0;
    std::shared_ptr<SharedMemory> memory;
  };
  std::shared_ptr<const ControlBlock> block_;
  std::vector<std::map<std::uint32_t, Attached>> by_owner_;
};

}  // namespace trireme::wire
