#pragma once
// While it lives, the process cannot map more than so much beyond what it has: who would take memory by what
// a file announces fails there, whatever the machine has. One at a time.

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace trireme::test {

class MemoryLimit {
 public:
  explicit MemoryLimit(std::uint64_t more_bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + more_bytes;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace trireme::test
