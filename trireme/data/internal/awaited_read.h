#pragma once
// Whether a read had to wait: then the other reads of a batch are announced to the disk, so that it fetches
// them side by side. An announcement of every read costs a fifth of the time of reading small samples from
// the page cache; io_uring does the same, and is no faster (ADR 0057).

#include <cstddef>

#include "trireme/base/clock.h"

namespace trireme::data {

class AwaitedRead {
 public:
  /// Begins with a read of so many bytes.
  explicit AwaitedRead(std::size_t bytes) : bytes_(bytes) {}
  /// It is over, and took longer than memory does on any machine.
  bool has_waited() const {
    constexpr double kCall_s = 20e-6, kByte_s = 1e-9;
    return now_s() - began_s_ > kCall_s + kByte_s * static_cast<double>(bytes_);
  }

 private:
  std::size_t bytes_;
  double began_s_ = now_s();
};

}  // namespace trireme::data
