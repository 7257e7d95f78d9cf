#pragma once
// The threads of this process on some of their cores, for as long as the object lives: those that are there
// and may run where the calling one may, and those that they start. Others were bound by somebody who knows
// why, and stay. The destructor gives back what threads could run on, to those that are where they were put.

#include <vector>

namespace trireme::comm {

class PinnedThreads {
 public:
  /// Throws InternalError where the kernel refuses.
  explicit PinnedThreads(const std::vector<int>& cores);
  ~PinnedThreads();
  PinnedThreads(const PinnedThreads&) = delete;
  PinnedThreads& operator=(const PinnedThreads&) = delete;

 private:
  std::vector<int> before_, now_;
};

}  // namespace trireme::comm
