#pragma once
// Large blocks of memory, each a mapping of its own, outside the C library's heap. A freed block is kept for
// the next allocation of its size. Kept blocks are bounded: all mappings together are at most 1/16 larger
// than the most that was in use at a time in the last windows of allocations. Above that a kept block is
// resized (mremap, which keeps its pages) or unmapped. Thread-safe; an allocation costs a lock and a look-up.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

namespace trireme {

class LargeBlocks {
 public:
  /// Smaller ones are better off in a heap.
  static constexpr std::size_t kMinBytes = 1 << 20;
  /// Allocations in a window: several steps of most models.
  static constexpr int kWindow = 1024;

  struct Use {
    std::size_t in_use_bytes = 0;  ///< as asked for, in whole pages
    std::size_t mapped_bytes = 0;  ///< of blocks in use and of kept ones
  };

  /// The one of this process, never destroyed: tensors may be freed while the process ends.
  static LargeBlocks& of_process();

  LargeBlocks() = default;
  ~LargeBlocks();
  LargeBlocks(const LargeBlocks&) = delete;
  LargeBlocks& operator=(const LargeBlocks&) = delete;

  /// A block that begins at a page, with undefined content. Null: the kernel has no memory for it.
  void* allocate(std::size_t bytes);
  /// False, and nothing is done: the address is none that allocate() has returned.
  bool free(void* address);
  /// Whether the address is that of a block in use.
  bool has(const void* address) const;
  /// Unmaps all kept blocks.
  void release();
  /// From now on each block is reported to the process's ledger (base/memory_ledger.h).
  void count();
  Use use() const;

 private:
  struct Block {
    std::size_t asked = 0;   ///< bytes, in whole pages
    std::size_t mapped = 0;  ///< at least as many
  };
  using Kept = std::multimap<std::size_t, void*>;  ///< by mapped bytes

  void begin(std::size_t need);
  std::size_t limit() const;
  Block take(std::size_t need, void** address);
  Block resize(Kept::iterator kept, std::size_t need, void** address);
  Kept::iterator nearest(std::size_t need);
  void unmap_until(std::size_t most_bytes);

  mutable std::mutex mutex_;
  bool counts_ = false;
  std::unordered_map<void*, Block> in_use_;
  Kept kept_;
  Use use_;
  std::size_t peak_ = 0, peak_before_ = 0;  ///< most bytes in use: in this window, and in the one before
  int allocations_ = 0;                     ///< in this window
};

}  // namespace trireme
