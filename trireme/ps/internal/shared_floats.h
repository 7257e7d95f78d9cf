#pragma once
// Values that one thread changes and others read. A reader has a lease on this very block. A thread that
// wants to change it while there is a lease takes a copy and changes that. So no reader ever sees half of an
// update.
//
// Why this is right across threads: only the owner's thread gives leases, so a count of zero that it reads
// stays zero until it gives another. It reads the count with acquire, and a reader ends its lease with
// release, after its last read. Decrements of several readers form one release sequence. So a zero means that
// all their reads have happened before. A count that is read too high costs a copy and nothing else.
// shared_ptr::use_count() would not do: it is read relaxed, which orders nothing.
//
// One thread, except for leases, which may be passed on and ended on any.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trireme/wire/buffer.h"

namespace trireme::ps {

class SharedFloats {
 public:
  explicit SharedFloats(std::vector<float> values) : block_(std::make_shared<Block>(std::move(values))) {}

  std::span<const float> get() const { return block_->values; }
  /// To be changed: without leases, a copy where there were any, or where a copy of this object shares it.
  std::span<float> change() {
    if (block_->num_leases.load(std::memory_order_acquire) != 0 || block_.use_count() > 1)
      block_ = std::make_shared<Block>(block_->values);
    return block_->values;
  }
  /// Its present content, for as long as the buffer lives.
  wire::Buffer lease() const {
    block_->num_leases.fetch_add(1, std::memory_order_relaxed);
    std::shared_ptr<const void> owner(block_.get(), [block = block_](const void*) {
      block->num_leases.fetch_sub(1, std::memory_order_release);
    });
    return wire::Buffer(std::move(owner), std::as_bytes(std::span(block_->values)));
  }

 private:
  struct Block {
    explicit Block(std::vector<float> its_values) : values(std::move(its_values)) {}
    std::vector<float> values;
    std::atomic<std::uint32_t> num_leases{0};
  };
  std::shared_ptr<Block> block_;
};

}  // namespace trireme::ps
