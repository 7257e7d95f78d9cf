// Collectives with unequal parts and on temporaries, over every backend that supports ranks as threads. They
// are compared with the collectives of equal parts and with the serial result.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct UnequalCase {
  std::string backend;
  int num_ranks = 1;
};

std::vector<UnequalCase> unequal_cases() {
  std::vector<UnequalCase> result;
  for (const auto& info : backend_infos()) {
    if (info.name == "nccl") continue;
    for (const int num_ranks : {1, 2, 3, 4}) result.push_back({info.name, num_ranks});
  }
  return result;
}

class UnequalCollectives : public testing::TestWithParam<UnequalCase> {
 protected:
  void run(const std::function<void(Context&)>& body) {
    run_ranks_as_threads(GetParam().num_ranks, body, {.backend = GetParam().backend, .timeout_s = 20});
  }
};

INSTANTIATE_TEST_SUITE_P(EveryBackend, UnequalCollectives, testing::ValuesIn(unequal_cases()),
                         [](const auto& test) {
                           return text(test.param.backend, "_", test.param.num_ranks);
                         });

/// 2, 0, 6, ... rows: rank 1 has none.
std::vector<std::int64_t> rows_of(int size) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(rank == 1 ? 0 : 2 + 2 * rank);
  return rows;
}

std::int64_t sum_of_rows(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

/// Small integers: every order of a sum gives the same bits.
at::Tensor rows_from(int rank, std::int64_t rows, at::ScalarType dtype) {
  return at::arange(rows * 3, at::kLong).add(rank * 2).remainder(5).add(1).view({rows, 3}).to(dtype);
}

TEST_P(UnequalCollectives, AllGatherConcatenatesRowsOfAllRanks) {
  run([](Context& context) {
    Group& world = context.world();
    const auto rows = rows_of(world.size());
    for (const auto dtype : {at::kFloat, at::kLong, at::kBFloat16}) {
      std::vector<at::Tensor> parts;
      for (int rank = 0; rank < world.size(); ++rank)
        parts.push_back(rows_from(rank, rows[static_cast<std::size_t>(rank)], dtype));
      const at::Tensor& mine = parts[static_cast<std::size_t>(world.rank())];
      at::Tensor output = at::zeros({sum_of_rows(rows), 3}, dtype), later = at::zeros_like(output);
      world.all_gather(output, mine, rows);
      EXPECT_TRUE(output.equal(at::cat(parts))) << "rank " << world.rank();
      world.all_gather_async(later, mine, rows).wait();
      EXPECT_TRUE(later.equal(output)) << "rank " << world.rank();
    }
  });
}

TEST_P(UnequalCollectives, AllGatherTakesInputFromItsOutput) {
  run([](Context& context) {
    Group& world = context.world();
    const auto rows = rows_of(world.size());
    at::Tensor output = at::zeros({sum_of_rows(rows), 2});
    std::int64_t begin = 0;
    for (int rank = 0; rank < world.rank(); ++rank) begin += rows[static_cast<std::size_t>(rank)];
    const at::Tensor mine = output.narrow(0, begin, rows[static_cast<std::size_t>(world.rank())]);
    mine.fill_(world.rank() + 1);
    world.all_gather(output, mine, rows);
    std::vector<at::Tensor> expected;
    for (int rank = 0; rank < world.size(); ++rank)
      expected.push_back(at::full({rows[static_cast<std::size_t>(rank)], 2}, rank + 1.0));
    EXPECT_TRUE(output.equal(at::cat(expected)));
  });
}

TEST_P(UnequalCollectives, ReduceScatterHasRowsOfAllReduce) {
  run([](Context& context) {
    Group& world = context.world();
    const auto rows = rows_of(world.size());
    std::int64_t begin = 0;
    for (int rank = 0; rank < world.rank(); ++rank) begin += rows[static_cast<std::size_t>(rank)];
    const std::int64_t mine = rows[static_cast<std::size_t>(world.rank())];
    for (const auto dtype : {at::kFloat, at::kLong, at::kBFloat16}) {
      for (const auto op :
           {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        if (op == ReduceOp::kAverage && dtype == at::kLong) continue;
        const at::Tensor input = rows_from(world.rank(), sum_of_rows(rows), dtype);
        at::Tensor all = input.clone(), output = at::zeros({mine, 3}, dtype), later = at::zeros_like(output);
        world.all_reduce(all, op);
        world.reduce_scatter(output, input, rows, op);
        EXPECT_TRUE(output.equal(all.narrow(0, begin, mine))) << "rank " << world.rank();
        Pending pending = world.reduce_scatter_async(later, input, rows, op);
        pending.wait();
        pending.wait();
        EXPECT_TRUE(later.equal(output)) << "rank " << world.rank();
      }
    }
  });
}

/// The watcher waits for a dropped operation.
TEST_P(UnequalCollectives, ADroppedReduceScatterIsCompleted) {
  run([](Context& context) {
    Group& world = context.world();
    const auto rows = rows_of(world.size());
    for (int i = 0; i < 3; ++i) {
      const at::Tensor input = at::ones({sum_of_rows(rows), 4});
      world.reduce_scatter_async(at::empty({rows[static_cast<std::size_t>(world.rank())], 4}), input, rows);
    }
    world.barrier();
  });
}

TEST_P(UnequalCollectives, RowsThatDoNotFitAreRejected) {
  run([](Context& context) {
    Group& world = context.world();
    const auto rows = rows_of(world.size());
    const auto mine = rows[static_cast<std::size_t>(world.rank())];
    const at::Tensor whole = at::ones({sum_of_rows(rows), 2}), part = at::ones({mine, 2});
    auto too_many = rows;
    too_many.push_back(0);
    EXPECT_THAT([&] { world.all_gather(whole, part, too_many); },
                ThrowsMessage<InvalidArgument>(HasSubstr("all_gather: ")));
    EXPECT_THAT(
        [&] {
          world.all_gather(at::ones({sum_of_rows(rows) + 1, 2}), part, rows);
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("the splits of 'output' add up to")));
    EXPECT_THAT(
        [&] {
          world.all_gather(whole, at::ones({mine + 1, 2}), rows);
        },
        ThrowsMessage<InvalidArgument>(HasSubstr(text("expected ", mine, " rows"))));
    EXPECT_THAT(
        [&] {
          world.reduce_scatter(at::ones({mine, 3}), whole, rows);
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("rows of 'input' are [2]")));
    EXPECT_THAT(
        [&] { world.reduce_scatter(part.to(at::kLong), whole.to(at::kLong), rows, ReduceOp::kAverage); },
        ThrowsMessage<InvalidArgument>(HasSubstr("average")));
    world.reduce_scatter(part, whole, rows);
    EXPECT_TRUE(part.eq(world.size()).all().item<bool>()) << "the group is usable after errors";
  });
}

std::vector<std::string> backends_of_threads() {
  std::vector<std::string> names;
  for (const auto& info : backend_infos())
    if (info.name != "nccl") names.push_back(info.name);
  return names;
}

class UnequalRowsOfThree : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(EveryBackend, UnequalRowsOfThree, testing::ValuesIn(backends_of_threads()),
                         [](const auto& test) { return test.param; });

/// Ranks with different lists of rows, each of which fits the rank's own tensors.
TEST_P(UnequalRowsOfThree, NameTheOperation) {
  std::map<int, std::string> errors;
  std::mutex mutex;
  const auto body = [&](Context& context) {
    const bool first = context.rank() == 0;
    const std::vector<std::int64_t> rows =
        first ? std::vector<std::int64_t>{1, 2, 1} : std::vector<std::int64_t>{1, 1, 2};
    const at::Tensor mine = at::ones({rows[static_cast<std::size_t>(context.rank())], 2});
    try {
      context.world().all_gather(at::empty({4, 2}), mine, rows);
    } catch (const CommError& error) {
      const std::lock_guard lock(mutex);
      errors[context.rank()] = error.what();
      throw;
    }
  };
  EXPECT_THROW(run_ranks_as_threads(3, body, {.backend = GetParam(), .timeout_s = 5}), CommError);
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(errors[rank], HasSubstr("all_gather")) << rank;
}

TEST_P(UnequalCollectives, CollectivesWriteToTheMemoryOfTemporaries) {
  run([](Context& context) {
    Group& world = context.world();
    const int size = world.size(), rank = world.rank();
    const at::Tensor loss = at::full({1}, 1.0 + rank).requires_grad_();
    world.all_reduce(loss.detach());
    EXPECT_EQ(loss.item<float>(), static_cast<float>(size * (size + 1) / 2));
    const at::Tensor all = at::zeros({size, 2});
    world.all_gather(all.view({-1}), at::full({2}, 1.0 + rank));
    EXPECT_EQ(all.sum().item<float>(), static_cast<float>(size * (size + 1)));
    world.broadcast_async(all.narrow(0, 0, 1), 0).wait();
    const at::Tensor parts = at::zeros({2});
    world.reduce_scatter(parts.view({2}), all.view({-1}), ReduceOp::kMax);
    EXPECT_TRUE(parts.equal(all[rank]));
    world.all_to_all(all.view({-1}), at::full({size * 2}, 1.0 * rank));
    EXPECT_TRUE(all.select(1, 0).equal(at::arange(size, at::kFloat)));
  });
}

}  // namespace
}  // namespace trireme::comm
