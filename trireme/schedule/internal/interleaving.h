#pragma once
// Which chunk has its turn in an interleaved schedule: groups of micro-batches go through the chunks one
// after the other. arXiv 2104.04473, section 2.2.2. A value.

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::schedule {

struct Interleaving {
  int num_ranks;
  int num_chunks;
  int num_microbatches;
  int group_size;

  /// Stage of a rank's k-th forward.
  int forward_stage(int rank, int k) const { return k / group_size % num_chunks * num_ranks + rank; }
  /// Stage of a rank's k-th backward.
  int backward_stage(int rank, int k) const {
    return (num_chunks - 1 - k / group_size % num_chunks) * num_ranks + rank;
  }
};

/// Throws InvalidArgument when groups do not fit.
inline Interleaving interleaving(const ScheduleOptions& options) {
  const int m = options.num_microbatches;
  const int p = options.num_ranks;
  const int group = options.group_size > 0 ? options.group_size : m / std::max(1, m / p);
  require(m % group == 0, m, " micro-batches do not fill groups of ", group,
          "; take a multiple of the number of ranks (", p, ") or set a group size that divides them");
  require(options.num_chunks == 1 || group >= std::min(m, p), "groups of ", group,
          " micro-batches are smaller than the ", p,
          " ranks, which would wait for themselves; take at least ", p);
  return {p, options.num_chunks, m, group};
}

}  // namespace trireme::schedule
