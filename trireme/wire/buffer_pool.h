#pragma once
// Memory for received messages, used again: a large buffer that was just freed is mapped and warm, and a new
// one from the kernel costs a page fault every 4 KiB. Sizes are powers of two; small ones come from the
// allocator. A buffer outlives its pool. Thread-safe.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace trireme::wire {

/// Memory to fill, and its owner.
struct FreshBuffer {
  std::shared_ptr<std::byte> owner;
  std::span<std::byte> bytes;
};

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  /// Keeps at most `max_kept_bytes` of free buffers.
  static std::shared_ptr<BufferPool> create(std::size_t max_kept_bytes);
  /// Its content is undefined. Throws std::bad_alloc.
  FreshBuffer take(std::size_t bytes);
  std::size_t kept_bytes() const;

 private:
  explicit BufferPool(std::size_t max_kept_bytes) : max_kept_bytes_(max_kept_bytes) {}
  void give_back(std::unique_ptr<std::byte[]> memory, std::size_t bytes);

  const std::size_t max_kept_bytes_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::unique_ptr<std::byte[]>>> kept_;  ///< by size
  std::size_t kept_bytes_ = 0;
};

}  // namespace trireme::wire
