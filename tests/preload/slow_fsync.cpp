// Preloaded library. Every fsync takes TRIREME_TEST_FSYNC_S seconds longer, as on a slow disk.

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

extern "C" int fsync(int descriptor) {
  const char* seconds = std::getenv("TRIREME_TEST_FSYNC_S");
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds == nullptr ? 0 : std::atof(seconds)));
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
