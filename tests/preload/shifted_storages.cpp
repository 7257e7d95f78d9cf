// Preloaded library. It shifts libtorch's CPU storages by 16, 32 or 48 bytes beyond a multiple of 64, in
// turn. Libtorch guarantees an alignment of 64 bytes (c10::alloc_cpu). Views, mapped files and pieces of
// shards have any alignment. Results that depend on the alignment become visible.

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* memory);
}

namespace {

constexpr std::size_t kAlignment = 64;
// The mark is where the C library stores the size of a block. No block has that size.
constexpr std::uint64_t kMark = 0x5348'4946'5445'4400;

std::uint64_t& mark_before(void* memory) { return static_cast<std::uint64_t*>(memory)[-1]; }

bool is_shifted(void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % kAlignment != 0 &&
         (mark_before(memory) & ~std::uint64_t{0xff}) == kMark;
}

struct Range {
  std::uintptr_t begin = 0, end = 0;
};

/// The address range of the code of libc10, which allocates storages. Empty in a program without libtorch.
int find_libc10(dl_phdr_info* library, std::size_t, void* found) {
  if (std::strstr(library->dlpi_name, "/libc10.so") == nullptr) return 0;
  auto& range = *static_cast<Range*>(found);
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const auto& part = library->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    range.begin = library->dlpi_addr + part.p_vaddr;
    range.end = range.begin + part.p_memsz;
  }
  return 1;
}

bool is_of_libc10(void* caller) {
  static const Range range = [] {
    Range found;
    dl_iterate_phdr(find_libc10, &found);
    return found;
  }();
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  return address >= range.begin && address < range.end;
}

}  // namespace

extern "C" int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  static std::atomic<unsigned> count{0};
  const bool shifted = alignment == kAlignment && is_of_libc10(__builtin_return_address(0));
  auto* const block = static_cast<char*>(__libc_memalign(alignment, shifted ? size + kAlignment : size));
  if (block == nullptr) return ENOMEM;
  *memory = block;
  if (!shifted) return 0;
  const std::uint64_t shift = 16 * (1 + count++ % 3);
  *memory = block + shift;
  mark_before(*memory) = kMark | shift;
  return 0;
}

extern "C" void free(void* memory) {
  if (memory == nullptr || !is_shifted(memory)) return __libc_free(memory);
  const std::uint64_t shift = mark_before(memory) & 0xff;
  mark_before(memory) = 0;
  __libc_free(static_cast<char*>(memory) - shift);
}
