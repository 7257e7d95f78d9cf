#pragma once
// All-gather and reduce-scatter of unequal parts, as exchanges (all_to_all) in which ranks send only the
// parts that the others need.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "trireme/comm/internal/group_state.h"

namespace trireme::comm {

struct UnequalParts {
  at::Tensor output, input;
  std::vector<std::int64_t> rows;  ///< of each rank
  int rank = 0;                    ///< the world rank, for messages
};

/// Every rank sends its input to all.
Work start_unequal_all_gather(const UnequalParts& parts, c10d::Backend& backend, bool is_async);
/// Each rank receives its part of every rank's input, and reduces them in rank order in wait().
Work start_unequal_reduce_scatter(const UnequalParts& parts, const c10d::ReduceOp& op, c10d::Backend& backend,
                                  bool is_async);

}  // namespace trireme::comm
