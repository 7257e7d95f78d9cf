#include "tests/unit/ps/allocations.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace trireme::ps {

std::size_t& largest_allocation() {
  thread_local std::size_t largest = 0;
  return largest;
}

}  // namespace trireme::ps

// Sanitizers have their own operators, which reject impossible sizes themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t size) {
  std::size_t& largest = trireme::ps::largest_allocation();
  largest = std::max(largest, size);
  if (void* memory = std::malloc(std::max<std::size_t>(size, 1))) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
