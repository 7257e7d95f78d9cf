// Preloaded into a program: on rank TRIREME_TEST_PREAD_RANK every pread takes TRIREME_TEST_PREAD_S seconds
// more, as on a slow disk of its host.

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

extern "C" ssize_t pread(int descriptor, void* into, size_t size, off_t offset) {
  const char* seconds = std::getenv("TRIREME_TEST_PREAD_S");
  const char* slow = std::getenv("TRIREME_TEST_PREAD_RANK");
  const char* rank = std::getenv("RANK");
  if (seconds != nullptr && slow != nullptr && rank != nullptr && std::strcmp(slow, rank) == 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(seconds)));
  return ::syscall(SYS_pread64, descriptor, into, size, offset);
}

extern "C" ssize_t pread64(int descriptor, void* into, size_t size, off_t offset) {
  return pread(descriptor, into, size, offset);
}
