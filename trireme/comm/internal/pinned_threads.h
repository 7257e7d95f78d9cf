#pragma once
// Binds the threads of this process to some of their cores, for as long as the object lives: the existing
// ones that may run where the calling one may, and those that they start. Threads that other code has bound
// stay. The destructor restores the cores of threads that are still bound as set here.

#include <vector>

namespace trireme::comm {

class PinnedThreads {
 public:
  /// Throws InternalError where the kernel rejects it.
  explicit PinnedThreads(const std::vector<int>& cores);
  ~PinnedThreads();
  PinnedThreads(const PinnedThreads&) = delete;
  PinnedThreads& operator=(const PinnedThreads&) = delete;

 private:
  std::vector<int> before_, now_;
};

}  // namespace trireme::comm
