// Preloaded library. On rank TRIREME_TEST_PREAD_RANK each pread takes TRIREME_TEST_PREAD_S seconds longer, as
// on a slow disk. A read that was announced by posix_fadvise(WILLNEED) is not delayed, because the disk has
// prefetched it. At exit the process writes the number of delayed reads to the file TRIREME_TEST_PREAD_COUNT.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace {

bool is_slow() {
  static const bool slow = [] {
    const char* which = std::getenv("TRIREME_TEST_PREAD_RANK");
    const char* rank = std::getenv("RANK");
    return std::getenv("TRIREME_TEST_PREAD_S") != nullptr && which != nullptr && rank != nullptr &&
           std::strcmp(which, rank) == 0;
  }();
  return slow;
}

class Disk {
 public:
  void announce(int descriptor, off_t offset) {
    const std::lock_guard lock(mutex_);
    announced_.emplace(descriptor, offset);
  }
  void read(int descriptor, off_t offset) {
    {
      const std::lock_guard lock(mutex_);
      if (announced_.erase({descriptor, offset}) > 0) return;
      ++waited_;
    }
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::atof(std::getenv("TRIREME_TEST_PREAD_S"))));
  }
  ~Disk() {
    const char* path = std::getenv("TRIREME_TEST_PREAD_COUNT");
    std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
    if (file == nullptr) return;
    std::fprintf(file, "%d\n", waited_);
    std::fclose(file);
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<int, off_t>> announced_;
  int waited_ = 0;
};

Disk& disk() {
  static Disk one;
  return one;
}

}  // namespace

extern "C" ssize_t pread(int descriptor, void* into, size_t size, off_t offset) {
  if (is_slow()) disk().read(descriptor, offset);
  return ::syscall(SYS_pread64, descriptor, into, size, offset);
}

extern "C" ssize_t pread64(int descriptor, void* into, size_t size, off_t offset) {
  return pread(descriptor, into, size, offset);
}

extern "C" int posix_fadvise(int descriptor, off_t offset, off_t size, int advice) {
  if (is_slow() && advice == POSIX_FADV_WILLNEED) disk().announce(descriptor, offset);
  return ::syscall(SYS_fadvise64, descriptor, offset, size, advice) == 0 ? 0 : 1;
}

extern "C" int posix_fadvise64(int descriptor, off_t offset, off_t size, int advice) {
  return posix_fadvise(descriptor, offset, size, advice);
}
