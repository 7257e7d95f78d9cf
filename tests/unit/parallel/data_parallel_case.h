#pragma once
// Common parts of the tests of DistributedDataParallel.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {

using comm::Context;
using comm::run_ranks_as_threads;
using test::model_without_norm;
using test::numbers;
using test::TwoLayers;
using testing::AllOf;
using testing::HasSubstr;

/// No wait of a test takes this long.
inline const comm::ContextOptions kDeadline{.timeout_s = 20};

/// The loss of six samples of the rank.
inline at::Tensor loss_of_rank(TwoLayers& model, int rank) {
  return model.forward(numbers({6, 4}, 3 + rank)).square().mean();
}

}  // namespace trireme::parallel
