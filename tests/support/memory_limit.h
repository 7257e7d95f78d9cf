#pragma once
// While an object exists, the process can map only a limited number of further bytes. Code that allocates
// memory by the announced size of a file then fails on any machine. One object at a time.

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
