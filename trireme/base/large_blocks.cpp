#include "trireme/base/large_blocks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "trireme/base/memory_ledger.h"
#include "trireme/base/rounding.h"

namespace trireme {
namespace {

std::size_t page_bytes() {
  static const auto kBytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return kBytes;
}

/// Null: the kernel has no memory.
void* map_pages(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

/// Bytes of a block that may stay unused.
std::size_t slack_of(std::size_t bytes) { return bytes / 16; }

}  // namespace

LargeBlocks& LargeBlocks::of_process() {
  static auto* const kBlocks = new LargeBlocks;
  return *kBlocks;
}

LargeBlocks::~LargeBlocks() { release(); }

void* LargeBlocks::allocate(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 4) return nullptr;
  const std::size_t need = round_up(std::max<std::size_t>(bytes, 1), page_bytes());
  const std::lock_guard lock(mutex_);
  begin(need);
  void* address = nullptr;
  const Block block = take(need, &address);
  if (address == nullptr) {
    peak_ = use_.in_use_bytes;
    return nullptr;
  }
  in_use_.emplace(address, block);
  use_.in_use_bytes += need;
  if (counts_) MemoryLedger::of_process().add(address, bytes);
  return address;
}

bool LargeBlocks::free(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = in_use_.find(address);
  if (found == in_use_.end()) return false;
  if (counts_) MemoryLedger::of_process().remove(address);
  use_.in_use_bytes -= found->second.asked;
  kept_.emplace(found->second.mapped, address);
  in_use_.erase(found);
  return true;
}

bool LargeBlocks::has(const void* address) const {
  const std::lock_guard lock(mutex_);
  return in_use_.contains(const_cast<void*>(address));
}

void LargeBlocks::release() {
  const std::lock_guard lock(mutex_);
  unmap_until(0);
}

void LargeBlocks::count() {
  const std::lock_guard lock(mutex_);
  counts_ = true;
}

LargeBlocks::Use LargeBlocks::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

/// Accounts for an allocation. It may begin a new window.
void LargeBlocks::begin(std::size_t need) {
  if (++allocations_ >= kWindow) {
    allocations_ = 0;
    peak_before_ = std::exchange(peak_, 0);
  }
  peak_ = std::max(peak_, use_.in_use_bytes + need);
  unmap_until(limit());
}

std::size_t LargeBlocks::limit() const {
  const std::size_t peak = std::max(peak_, peak_before_);
  return peak + slack_of(peak);
}

/// Takes a kept block of about that size. At the limit, resizes another one; else maps new memory.
LargeBlocks::Block LargeBlocks::take(std::size_t need, void** address) {
  const auto kept = kept_.lower_bound(need);
  if (kept != kept_.end() && kept->first <= need + slack_of(need)) {
    const Block block{.asked = need, .mapped = kept->first};
    *address = kept->second;
    kept_.erase(kept);
    return block;
  }
  if (use_.mapped_bytes + need > limit() && !kept_.empty()) {
    const Block block = resize(nearest(need), need, address);
    unmap_until(limit());
    if (*address != nullptr) return block;
  }
  *address = map_pages(need);
  if (*address == nullptr && !kept_.empty()) {
    unmap_until(0);
    *address = map_pages(need);
  }
  if (*address == nullptr) return {};
  use_.mapped_bytes += need;
  return {.asked = need, .mapped = need};
}

/// The largest kept block that is too small, because it has most pages. Without one, the smallest of the
/// others.
LargeBlocks::Kept::iterator LargeBlocks::nearest(std::size_t need) {
  const auto above = kept_.lower_bound(need);
  return above == kept_.begin() ? above : std::prev(above);
}

/// Null: the kernel has no memory for it. The block is then unmapped.
LargeBlocks::Block LargeBlocks::resize(Kept::iterator kept, std::size_t need, void** address) {
  const auto [mapped, before] = *kept;
  kept_.erase(kept);
  use_.mapped_bytes -= mapped;
  void* const resized = ::mremap(before, mapped, need, MREMAP_MAYMOVE);
  if (resized == MAP_FAILED) {
    ::munmap(before, mapped);
    return {};
  }
  use_.mapped_bytes += need;
  *address = resized;
  return {.asked = need, .mapped = need};
}

/// The smallest first: large blocks have most pages for later allocations.
void LargeBlocks::unmap_until(std::size_t most_bytes) {
  while (use_.mapped_bytes > most_bytes && !kept_.empty()) {
    const auto smallest = kept_.begin();
    ::munmap(smallest->second, smallest->first);
    use_.mapped_bytes -= smallest->first;
    kept_.erase(smallest);
  }
}

}  // namespace trireme
