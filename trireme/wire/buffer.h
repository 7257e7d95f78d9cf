#pragma once
// Bytes and their owner: the payload of messages. Copies share the bytes, which do not change any more. A
// value; thread-safe as its owner's reference count is.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace trireme::wire {

class Buffer {
 public:
  /// No bytes.
  Buffer() = default;
  /// These bytes, for as long as `owner` lives: a piece of shared memory, a chunk of a table.
  Buffer(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  static Buffer of(std::vector<std::byte> bytes) {
    auto kept = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    const std::span<const std::byte> view(*kept);
    return Buffer(std::move(kept), view);
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  /// A part of it, which keeps the whole alive. `offset` + `count` is at most size().
  Buffer part(std::size_t offset, std::size_t count) const {
    return Buffer(owner_, bytes_.subspan(offset, count));
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

}  // namespace trireme::wire
