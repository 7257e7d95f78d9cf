#pragma once
// Which workers have to join a partition before steps count there: the first to come would end steps alone,
// as a clock counts the workers that are there. A value; follows from the joins of records, in their order.

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "trireme/ps/ids.h"

namespace trireme::ps {

class ExpectedWorkers {
 public:
  /// A worker joins that expects so many, itself included; 0: none. `is_alone`: there is no other worker. A
  /// worker that has joined before and joins again while there is none begins another training.
  void join(WorkerId worker, std::uint32_t num_workers, bool is_alone) {
    const bool was_here = std::find(joined_.begin(), joined_.end(), worker) != joined_.end();
    if (was_here && is_alone) *this = {};
    expected_ = std::max(expected_, num_workers);
    if (!was_here || is_alone) joined_.push_back(worker);
  }
  /// Those that have left or died since count.
  bool have_joined() const { return joined_.size() >= expected_; }

  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.expected_, self.joined_);
  }

 private:
  std::uint32_t expected_ = 0;
  std::vector<WorkerId> joined_;
};

}  // namespace trireme::ps
