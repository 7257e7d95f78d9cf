#pragma once
// Memory of rows of one size, numbered 0, 1, 2, ...: pages of at most 64 KiB, or one row, aligned to 64
// bytes. A page with another user (a snapshot, a file that is written) is copied before it is
// written. The first page grows with its rows, since most partitions of a small table hold few. One thread,
// but for leases of pages, which may be passed on and ended on any: see shared_floats.h for why.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "trireme/base/rounding.h"
#include "trireme/wire/buffer.h"

namespace trireme::ps {

class RowPages {
 public:
  explicit RowPages(std::size_t row_bytes)
      : stride_(round_up(row_bytes, std::size_t{16})),
        shift_(std::bit_width(std::max(kPageBytes / stride_, std::size_t{1})) - 1) {}

  RowPages(RowPages&&) = default;
  RowPages& operator=(RowPages&&) = default;

  /// With padding up to 16 bytes.
  std::size_t row_bytes() const { return stride_; }
  std::size_t rows_per_page() const { return std::size_t{1} << shift_; }
  std::uint32_t size() const { return size_; }

  const std::byte* read(std::size_t row) const {
    return pages_[row >> shift_].bytes + (row & (rows_per_page() - 1)) * stride_;
  }
  std::byte* write(std::size_t row) {
    Page& page = pages_[row >> shift_];
    if (page.may_be_shared) unshare(page);
    return page.bytes + (row & (rows_per_page() - 1)) * stride_;
  }
  /// A row of zeros at the end.
  std::byte* append() {
    if (size_ == capacity_) add_capacity();
    std::byte* row = write(size_);
    ++size_;
    std::memset(row, 0, stride_);
    return row;
  }
  void remove_last() {
    --size_;
    // One empty page is kept, so that rows that come and go at its edge cost nothing.
    while (pages_.size() > 1 && size_ + 2 * rows_per_page() <= capacity_) {
      pages_.pop_back();
      capacity_ -= rows_per_page();
    }
  }

  std::size_t num_pages() const { return (size_ + rows_per_page() - 1) >> shift_; }
  /// The rows of a page as they are now, for as long as the buffer lives.
  wire::Buffer lease(std::size_t page) const {
    pages_[page].may_be_shared = true;
    const std::shared_ptr<Block>& block = pages_[page].block;
    block->num_leases.fetch_add(1, std::memory_order_relaxed);
    std::shared_ptr<const void> owner(
        block.get(), [block](const void*) { block->num_leases.fetch_sub(1, std::memory_order_release); });
    return wire::Buffer(std::move(owner), bytes(page));
  }
  std::span<const std::byte> bytes(std::size_t page) const { return {pages_[page].bytes, bytes_in(page)}; }

 private:
  static constexpr std::size_t kPageBytes = 64 << 10;
  static constexpr std::align_val_t kAlignment{64};
  static constexpr std::size_t kFirstRows = 8;

  struct Block {
    explicit Block(std::size_t num_bytes)
        : bytes(static_cast<std::byte*>(::operator new(num_bytes, kAlignment))) {}
    ~Block() { ::operator delete(bytes, kAlignment); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    std::byte* bytes;
    std::atomic<std::uint32_t> num_leases{0};
  };
  struct Page {
    std::byte* bytes = nullptr;
    mutable bool may_be_shared = false;
    std::shared_ptr<Block> block;
  };

  static Page allocate(std::size_t num_bytes) {
    auto block = std::make_shared<Block>(num_bytes);
    return {.bytes = block->bytes, .may_be_shared = false, .block = std::move(block)};
  }
  std::size_t bytes_in(std::size_t page) const {
    return std::min(size_ - page * rows_per_page(), rows_per_page()) * stride_;
  }
  void unshare(Page& page) {
    page.may_be_shared = false;
    if (page.block->num_leases.load(std::memory_order_acquire) != 0)
      copy(page, std::min(capacity_, rows_per_page()));
  }
  void copy(Page& page, std::size_t num_rows) {
    Page other = allocate(num_rows * stride_);
    std::memcpy(other.bytes, page.bytes, bytes_in(static_cast<std::size_t>(&page - pages_.data())));
    page = std::move(other);
  }
  void add_capacity() {
    if (pages_.empty()) {
      capacity_ = std::min(kFirstRows, rows_per_page());
      pages_.push_back(allocate(capacity_ * stride_));
    } else if (capacity_ < rows_per_page()) {
      capacity_ = std::min(2 * capacity_, rows_per_page());
      copy(pages_[0], capacity_);
    } else {
      pages_.push_back(allocate(rows_per_page() * stride_));
      capacity_ += rows_per_page();
    }
  }

  std::size_t stride_;
  int shift_;
  std::vector<Page> pages_;
  std::size_t capacity_ = 0;  ///< rows
  std::uint32_t size_ = 0;
};

}  // namespace trireme::ps
