// The error of a rank when another rank runs another operation, runs nothing, or fails, on every backend.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> backends() {
  std::vector<std::string> result;
  for (const auto& info : backend_infos()) {
    if (info.name != "nccl") result.push_back(info.name);
  }
  return result;
}

class Failures : public testing::TestWithParam<std::string> {
 protected:
  /// The CommError of each rank, or an empty text. Ranks stay until all have their result.
  std::map<int, std::string> errors_of(int num_ranks, double timeout_s,
                                       const std::function<void(Context&)>& body) {
    std::map<int, std::string> errors;
    std::mutex mutex;
    std::atomic<int> num_done = 0;
    run_ranks_as_threads(num_ranks,
                         [&](Context& context) {
                           std::string error;
                           try {
                             body(context);
                           } catch (const CommError& failure) {
                             error = failure.what();
                           }
                           {
                             const std::lock_guard lock(mutex);
                             errors[context.rank()] = error;
                           }
                           ++num_done;
                           while (num_done < num_ranks)
                             std::this_thread::sleep_for(std::chrono::milliseconds(1));
                         },
                         {.backend = GetParam(), .timeout_s = timeout_s});
    return errors;
  }
};

INSTANTIATE_TEST_SUITE_P(EveryBackend, Failures, testing::ValuesIn(backends()),
                         [](const auto& test) { return test.param; });

TEST_P(Failures, DifferentSizesNameBothSides) {
  const auto errors = errors_of(2, 20, [](Context& context) {
    auto tensor = at::zeros({context.rank() == 0 ? 100 : 200});
    context.world().all_reduce(tensor);
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors.at(rank), AllOf(HasSubstr("reduce"), HasSubstr("100"), HasSubstr("200"),
                                       HasSubstr("rank 0"), HasSubstr("rank 1")));
  }
}

TEST_P(Failures, DifferentDtypesNameBothSides) {
  const auto errors = errors_of(3, 20, [](Context& context) {
    auto tensor = at::zeros({64}, context.rank() == 1 ? at::kInt : at::kFloat);
    context.world().broadcast(tensor, 0);
    // A rank whose part of the broadcast succeeded gets the error here at the latest.
    context.world().barrier();
  });
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(errors.at(rank), AllOf(HasSubstr("broadcast"), HasSubstr("i32"), HasSubstr("f32")));
  }
}

TEST_P(Failures, DifferentOrderNamesBothOperations) {
  const auto errors = errors_of(2, 20, [](Context& context) {
    auto tensor = at::zeros({64});
    if (context.rank() == 0) {
      context.world().barrier();
    } else {
      context.world().all_reduce(tensor);
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors.at(rank), AllOf(HasSubstr("barrier"), HasSubstr("reduce")));
  }
}

TEST_P(Failures, DifferentMessageSizesNameBothSides) {
  const auto errors = errors_of(2, 20, [](Context& context) {
    auto tensor = at::zeros({context.rank() == 0 ? 10 : 11});
    if (context.rank() == 0) {
      context.world().send(tensor, 1);
      context.world().barrier();
    } else {
      context.world().recv(tensor, 0);
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors.at(rank),
                AllOf(HasSubstr("send"), HasSubstr("recv"), HasSubstr("10"), HasSubstr("11")));
  }
}

/// Rank 0 waits for two rows of rank 1, which sends one, or waits for one row and gets two.
TEST_P(Failures, UnsentRowsNameExchange) {
  for (const std::int64_t expected : {2, 1}) {
    const auto errors = errors_of(2, 2, [&](Context& context) {
      const bool first = context.rank() == 0;
      const RowSplits rows = first ? RowSplits{.to = {1, 1}, .from = {1, expected}}
                                   : RowSplits{.to = {3 - expected, 1}, .from = {1, 1}};
      const at::Tensor input = at::ones({first ? 2 : 4 - expected, 3});
      at::Tensor output = at::zeros({first ? 1 + expected : 2, 3});
      context.world().all_to_all(output, input, rows);
      context.world().barrier();
    });
    for (const int rank : {0, 1})
      EXPECT_THAT(errors.at(rank), HasSubstr("all_to_all")) << "rank " << rank << " of rows " << expected;
  }
}

/// A pair of rows of three numbers. Two ranks send each other `sent` rows, and themselves one.
TensorExchange rows_of_three(const Context& context, std::int64_t sent, std::int64_t expected,
                             at::ScalarType type = at::kFloat) {
  const bool first = context.rank() == 0;
  const RowSplits rows = first ? RowSplits{.to = {1, sent}, .from = {1, expected}}
                               : RowSplits{.to = {sent, 1}, .from = {expected, 1}};
  return {.output = at::zeros({1 + expected, 3}, type), .input = at::ones({1 + sent, 3}, type), .rows = rows};
}

TEST_P(Failures, CoalescedExchangesNameDifferentPairCounts) {
  const auto errors = errors_of(2, 20, [](Context& context) {
    std::vector<TensorExchange> pairs = {rows_of_three(context, 1, 1), rows_of_three(context, 1, 1)};
    if (context.rank() == 1) pairs.pop_back();
    context.world().all_to_all_coalesced(pairs);
    context.world().barrier();
  });
  for (const int rank : {0, 1}) EXPECT_THAT(errors.at(rank), HasSubstr("all_to_all")) << rank;
  EXPECT_THAT(errors.at(0) + errors.at(1), AllOf(HasSubstr("2 tensors"), HasSubstr("1 tensor")));
}

/// The ranks use different dtypes, of different or of equal sizes.
TEST_P(Failures, CoalescedExchangesNameDifferentDtypes) {
  for (const at::ScalarType other : {at::kDouble, at::kInt}) {
    const auto errors = errors_of(2, 20, [&](Context& context) {
      context.world().all_to_all_coalesced(
          {rows_of_three(context, 1, 1),
           rows_of_three(context, 1, 1, context.rank() == 1 ? other : at::kFloat)});
      context.world().barrier();
    });
    const std::string name = other == at::kInt ? "i32" : "f64";
    EXPECT_THAT(errors.at(0) + errors.at(1),
                AllOf(HasSubstr("all_to_all_coalesced"), HasSubstr("f32"), HasSubstr(name)));
    for (const int rank : {0, 1}) EXPECT_NE(errors.at(rank), "") << rank;
  }
}

/// Rank 0 sends one row of the first pair and two of the second. Rank 1 expects the reverse, so the messages
/// have the expected sizes. Or rank 0 sends fewer rows.
TEST_P(Failures, CoalescedExchangesNameDifferentRowsWritingNothing) {
  for (const bool same_bytes : {true, false}) {
    std::atomic<bool> wrote = false;
    const auto errors = errors_of(2, 2, [&](Context& context) {
      const bool first = context.rank() == 0;
      std::vector<TensorExchange> pairs = {rows_of_three(context, 1, first ? 1 : 2),
                                           rows_of_three(context, first && same_bytes ? 2 : 1, 1)};
      try {
        context.world().all_to_all_coalesced(pairs);
        context.world().barrier();
      } catch (...) {
        for (const TensorExchange& pair : pairs) wrote = wrote || (!first && pair.output.any().item<bool>());
        throw;
      }
    });
    EXPECT_FALSE(wrote);
    for (const int rank : {0, 1}) EXPECT_THAT(errors.at(rank), HasSubstr("all_to_all")) << rank;
    if (same_bytes) {
      for (const int rank : {0, 1})
        EXPECT_THAT(errors.at(rank),
                    HasSubstr("rank 0 sends 3 f32 as tensor 0 to rank 1, which expects 6 f32"));
    } else if (GetParam() == "shm" || GetParam() == "threads") {
      EXPECT_THAT(errors.at(1), HasSubstr("tensor 0 of f32 sends [3, 3] and expects [6, 3]"));
    }
  }
}

TEST_P(Failures, DeadlineNamesMissingRank) {
  const double start_s = now_s();
  const auto errors = errors_of(3, 1, [](Context& context) {
    if (context.rank() == 1) return;
    auto tensor = at::zeros({64});
    context.world().all_reduce(tensor);
  });
  EXPECT_LT(now_s() - start_s, 10);
  EXPECT_EQ(errors.at(1), "");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors.at(rank), AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1"))) << rank;
  }
}

TEST_P(Failures, FailedGroupRepeatsItsFirstCause) {
  const auto errors = errors_of(2, 20, [](Context& context) {
    auto tensor = at::zeros({context.rank() == 0 ? 100 : 200});
    std::string first;
    try {
      context.world().all_reduce(tensor);
    } catch (const CommError& error) {
      first = error.what();
    }
    try {
      context.world().barrier();
    } catch (const CommError& error) {
      EXPECT_EQ(first, error.what());
      throw;
    }
  });
  EXPECT_NE(errors.at(0), "");
  EXPECT_NE(errors.at(1), "");
}

TEST_P(Failures, ThrowingRankEndsWaitOfOthers) {
  const double start_s = now_s();
  const auto body = [](Context& context) {
    if (context.rank() == 1) throw DataError("the file is gone");
    auto tensor = at::zeros({64});
    context.world().all_reduce(tensor);
  };
  EXPECT_THROW(run_ranks_as_threads(3, body, {.backend = GetParam(), .timeout_s = 30}), DataError);
  EXPECT_LT(now_s() - start_s, 15);
}

// Like the step reports of a trainer, when a rank freezes and another group detects it, or an exception ends
// a rank.
TEST_P(Failures, PendingOperationsDoNotKeepFailedGroup) {
  constexpr auto kHang = std::chrono::seconds(40);
  for (const bool by_exception : {false, true}) {
    SCOPED_TRACE(by_exception);
    std::promise<void> gone;
    run_ranks_as_threads(2,
                         [&](Context& context) {
                           std::optional<Group> other = context.new_group({0, 1}, "other");
                           if (context.rank() == 1) {  // runs no operation, and stays
                             EXPECT_EQ(gone.get_future().wait_for(kHang), std::future_status::ready);
                             return;
                           }
                           at::Tensor sum = at::zeros({1000});
                           try {
                             const Group dropped = *std::exchange(other, std::nullopt);
                             { const Pending pending = Group(dropped).all_reduce_async(sum); }
                             if (by_exception) throw DataError("the test ends it");
                             context.world().fail("the test ends it");
                           } catch (const DataError&) {
                             // The group has been destroyed.
                           }
                           gone.set_value();
                         },
                         {.backend = GetParam(), .timeout_s = 20});
  }
}

}  // namespace
}  // namespace trireme::comm
