// Lists of transfers between ranks that are threads, over connections of loopback.

#include "trireme/topology/exchange.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <future>
#include <random>
#include <span>
#include <thread>

#include "tests/unit/topology/exchange_ranks.h"
#include "trireme/base/error.h"
#include "trireme/wire/group_error.h"
#include "trireme/wire/reduce.h"

namespace trireme::topology {
namespace {

using testing::HasSubstr;
using wire::Element;
using wire::Reduction;

using Rank = test::ExchangeRank;
using test::on_exchange_ranks;

template <class T>
void all_reduce(Exchange& exchange, Algorithm algorithm, Element element, std::vector<T>& values,
                Reduction reduction = Reduction::kSum, double timeout_s = 30) {
  exchange.all_reduce({algorithm, element, reduction, std::as_writable_bytes(std::span(values))},
                      Deadline::after_s(timeout_s));
}

std::vector<float> values_of(int rank, std::size_t numel) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919u + static_cast<unsigned>(numel));
  std::normal_distribution<float> normal;
  std::vector<float> values(numel);
  for (float& each : values) each = normal(random);
  return values;
}

class ExchangeOfRanks : public testing::TestWithParam<std::tuple<int, Algorithm>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  Algorithm algorithm() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(EveryAlgorithm, ExchangeOfRanks,
                         testing::Combine(testing::Range(2, 7), testing::ValuesIn(algorithms())),
                         [](const auto& test) {
                           return text(name_of(std::get<1>(test.param)), std::get<0>(test.param));
                         });

TEST_P(ExchangeOfRanks, EndsWithSerialSumEverywhere) {
  for (const std::size_t numel : {0ul, 1ul, 2ul, 3ul, 7ul, 1000ul, 65537ul, 300001ul}) {
    std::vector<std::vector<float>> results(static_cast<std::size_t>(size()));
    const auto errors = on_exchange_ranks(size(), [&](Rank me) {
      auto& mine = results[static_cast<std::size_t>(me.rank)] = values_of(me.rank, numel);
      all_reduce(me.exchange, algorithm(), Element::kF32, mine);
    });
    EXPECT_THAT(errors, testing::Each(""));
    std::vector<double> expected(numel);
    for (int rank = 0; rank < size(); ++rank) {
      const auto theirs = values_of(rank, numel);
      for (std::size_t i = 0; i < numel; ++i) expected[i] += theirs[i];
    }
    for (std::size_t i = 0; i < numel; ++i) ASSERT_NEAR(results[0][i], expected[i], 1e-4) << i;
    for (const auto& each : results)
      EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(each)), std::as_bytes(std::span(results[0]))))
          << numel;
  }
}

TEST_P(ExchangeOfRanks, ReducesEveryTypeInEveryWay) {
  const auto check = [&]<class T>(Element element, T one, T two, Reduction reduction, T expected) {
    const auto errors = on_exchange_ranks(size(), [&](Rank me) {
      std::vector<T> values(1001, me.rank == 1 ? two : one);
      all_reduce(me.exchange, algorithm(), element, values, reduction);
      EXPECT_THAT(values, testing::Each(expected)) << wire::name(element) << " " << wire::name(reduction);
    });
    EXPECT_THAT(errors, testing::Each(""));
  };
  const int n = size();
  check(Element::kF64, 1.0, 4.0, Reduction::kSum, n + 3.0);
  check(Element::kI32, 1, 4, Reduction::kSum, n + 3);
  check(Element::kI64, std::int64_t{1}, std::int64_t{4}, Reduction::kSum, std::int64_t{n + 3});
  // 1 and 4 as bf16 and f16; their minimum and maximum.
  check(Element::kBf16, std::uint16_t{0x3f80}, std::uint16_t{0x4080}, Reduction::kMax, std::uint16_t{0x4080});
  check(Element::kF16, std::uint16_t{0x3c00}, std::uint16_t{0x4400}, Reduction::kMin, std::uint16_t{0x3c00});
  check(Element::kF32, 1.0f, 4.0f, Reduction::kProduct, 4.0f);
}

TEST_P(ExchangeOfRanks, ContinuesAfterEachOperationWithTheNext) {
  const auto errors = on_exchange_ranks(size(), [&](Rank me) {
    for (int round = 1; round <= 20; ++round) {
      std::vector<std::int32_t> values(static_cast<std::size_t>(round * 37), me.rank + round);
      all_reduce(me.exchange, algorithm(), Element::kI32, values);
      EXPECT_THAT(values, testing::Each(size() * (size() - 1) / 2 + size() * round));
    }
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST_P(ExchangeOfRanks, LeavingRankEndsOperationOfOthers) {
  std::atomic<int> failed = 0;
  on_exchange_ranks(size(), [&](Rank me) {
    if (me.rank == 1) return;
    std::vector<float> values(100000);
    try {
      all_reduce(me.exchange, algorithm(), Element::kF32, values);
    } catch (const wire::GroupError&) {
      ++failed;
      me.exchange.abort();  // like every rank that is notified of it
    }
  });
  EXPECT_EQ(failed, size() - 1);
}

TEST_P(ExchangeOfRanks, HasSameBitsOverChangedConnectionCount) {
  // Below one piece, two pieces and a remainder, and more pieces than there are connections.
  for (const std::size_t numel : {1000ul, 40001ul, 300001ul}) {
    std::vector<std::vector<float>> by_one(static_cast<std::size_t>(size()));
    on_exchange_ranks(size(), [&](Rank me) {
      auto& mine = by_one[static_cast<std::size_t>(me.rank)] = values_of(me.rank, numel);
      all_reduce(me.exchange, algorithm(), Element::kF32, mine);
    });
    const auto errors = on_exchange_ranks(size(),
                                          [&](Rank me) {
                                            for (const int lanes : {3, 5, 2, 1, 4}) {
                                              if (lanes != 3) me.set_lanes(lanes);
                                              EXPECT_EQ(me.exchange.num_lanes(), lanes);
                                              auto mine = values_of(me.rank, numel);
                                              all_reduce(me.exchange, algorithm(), Element::kF32, mine);
                                              EXPECT_EQ(mine, by_one[static_cast<std::size_t>(me.rank)])
                                                  << lanes;
                                            }
                                          },
                                          {.lanes = 3});
    EXPECT_THAT(errors, testing::Each(""));
  }
}

class ShardsOfRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ShardsOfRanks, testing::Range(2, 7), testing::PrintToStringParamName());

TEST_P(ShardsOfRanks, SumInRankOrderAndKeepInput) {
  const int size = GetParam();
  for (const std::size_t numel : {0ul, 1ul, 3ul, 1000ul, 200003ul}) {
    const auto errors = on_exchange_ranks(size, [&](Rank me) {
      const std::size_t whole = numel * static_cast<std::size_t>(size);
      const std::vector<float> parts = values_of(me.rank, whole);
      std::vector<float> sum(numel, -1);
      me.exchange.reduce_scatter(
          {.parts = std::as_bytes(std::span(parts)), .sum = std::as_writable_bytes(std::span(sum))},
          Deadline::after_s(30));
      EXPECT_EQ(parts, values_of(me.rank, whole));
      std::vector<float> expected(numel);
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<float> all = values_of(rank, whole);
        for (std::size_t i = 0; i < numel; ++i) {
          const float value = all[static_cast<std::size_t>(me.rank) * numel + i];
          expected[i] = rank == 0 ? value : expected[i] + value;
        }
      }
      EXPECT_EQ(sum, expected) << "bit by bit, " << numel;
    });
    EXPECT_THAT(errors, testing::Each(""));
  }
}

TEST_P(ShardsOfRanks, ReachAllAmongOtherOperations) {
  const int size = GetParam();
  const auto errors = on_exchange_ranks(size, [&](Rank me) {
    const auto rank = static_cast<std::size_t>(me.rank), ranks = static_cast<std::size_t>(size);
    for (const std::size_t numel : {1ul, 0ul, 5ul, 100001ul}) {
      std::vector<std::uint8_t> parts(numel * ranks);
      std::fill_n(parts.begin() + static_cast<std::ptrdiff_t>(rank * numel), numel,
                  static_cast<std::uint8_t>(me.rank + 1));
      me.exchange.all_gather(std::as_writable_bytes(std::span(parts)), Deadline::after_s(30));
      for (std::size_t i = 0; i < parts.size(); ++i)
        ASSERT_EQ(parts[i], i / numel + 1) << i << " of " << numel;
      std::vector<std::int32_t> values(numel, me.rank), ones(numel * ranks, 1), sum(numel);
      all_reduce(me.exchange, Algorithm::kRing, Element::kI32, values);
      EXPECT_THAT(values, testing::Each(size * (size - 1) / 2));
      me.exchange.reduce_scatter({.element = Element::kI32,
                                  .parts = std::as_bytes(std::span(ones)),
                                  .sum = std::as_writable_bytes(std::span(sum))},
                                 Deadline::after_s(30));
      EXPECT_THAT(sum, testing::Each(size));
    }
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(Exchange, FindsOtherShardSizesAndOperationKinds) {
  const auto errors = on_exchange_ranks(2, [](Rank me) {
    std::vector<float> values(4, 1), sum(2);
    EXPECT_THROW(me.exchange.reduce_scatter({.parts = std::as_bytes(std::span(values)),
                                             .sum = std::as_writable_bytes(std::span(sum).first(1))},
                                            Deadline::after_s(1)),
                 InvalidArgument);
    EXPECT_THROW(
        me.exchange.all_gather(std::as_writable_bytes(std::span(values)).first(3), Deadline::after_s(1)),
        InvalidArgument);
    if (me.rank == 0)
      return all_reduce(me.exchange, Algorithm::kDirect, Element::kF32, sum, Reduction::kSum, 0.2);
    me.exchange.reduce_scatter(
        {.parts = std::as_bytes(std::span(values)), .sum = std::as_writable_bytes(std::span(sum))},
        Deadline::after_s(0.2));
  });
  EXPECT_THAT(errors, testing::Each(HasSubstr("is in another operation")));
}

TEST(Exchange, LeavingRankEndsGatheringOfOthers) {
  std::atomic<int> failed = 0;
  on_exchange_ranks(3, [&](Rank me) {
    if (me.rank == 1) return;
    std::vector<float> values(300000);
    try {
      me.exchange.all_gather(std::as_writable_bytes(std::span(values)), Deadline::after_s(30));
    } catch (const wire::GroupError&) {
      ++failed;
      me.exchange.abort();
    }
  });
  EXPECT_EQ(failed, 2);
}

TEST(Exchange, DifferentSizesBlockUntilDeadline) {
  const auto errors = on_exchange_ranks(2, [](Rank me) {
    std::vector<float> values(me.rank == 0 ? 100 : 200);
    all_reduce(me.exchange, Algorithm::kDirect, Element::kF32, values, Reduction::kSum,
               me.rank == 0 ? 0.2 : 30);
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 is in another operation"));
  EXPECT_THAT(errors[1], HasSubstr("rank 0"));
}

TEST(Exchange, FindsDifferentAlgorithmWithEqualBytes) {
  const auto errors = on_exchange_ranks(2, [](Rank me) {
    std::vector<float> values(2);
    all_reduce(me.exchange, me.rank == 0 ? Algorithm::kRing : Algorithm::kHalvingDoubling, Element::kF32,
               values, Reduction::kSum, 0.2);
  });
  EXPECT_THAT(errors, testing::Each(HasSubstr("is in another operation")));
}

TEST(Exchange, AbortEndsWaitAndLaterCalls) {
  std::promise<void> over;
  auto waits = over.get_future().share();
  const auto errors = on_exchange_ranks(2, [&](Rank me) {
    if (me.rank == 1) {
      waits.wait();
      return;
    }
    std::thread aborts([&] { me.exchange.abort(); });
    std::vector<float> values(10);
    // Long before the deadline of the operation.
    EXPECT_THROW(all_reduce(me.exchange, Algorithm::kRing, Element::kF32, values, Reduction::kSum, 3600),
                 wire::GroupError);
    aborts.join();
    over.set_value();
    all_reduce(me.exchange, Algorithm::kRing, Element::kF32, values);
  });
  EXPECT_THAT(errors[0], HasSubstr("aborted"));
}

TEST(Exchange, MissingRankIsNamedAtDeadline) {
  const auto errors = on_exchange_ranks(3, [](Rank me) {
    std::vector<float> values(10);
    if (me.rank != 2) all_reduce(me.exchange, Algorithm::kTree, Element::kF32, values, Reduction::kSum, 0.2);
    if (me.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 2"));
}

TEST(Exchange, RejectsAndNamesHolderOfAnotherSecret) {
  const auto errors = on_exchange_ranks(3, [](Rank) {},
                                        {.secret_of =
                                             [](int rank) {
                                               return rank == 1 ? wire::Secret::from_text(
                                                                      "the secret of another job", "a test")
                                                                : test::kExchangeSecret;
                                             },
                                         .timeout_s = 2});
  EXPECT_THAT(errors[0], HasSubstr("rank 1"));
  EXPECT_THAT(errors[1], HasSubstr("rank 0"));
}

TEST(Exchange, GoesByTheLevelsThatHostsSay) {
  const std::vector<std::string> hosts = {"a/n0", "b/n1", "a/n2", "b/n3"};
  for (const std::size_t numel : {0ul, 3ul, 1001ul, 300001ul}) {
    std::vector<std::vector<float>> results(4);
    const auto errors = on_exchange_ranks(
        4,
        [&](Rank me) {
          EXPECT_THAT(me.exchange.levels().sizes, testing::ElementsAre(2, 2));
          auto& mine = results[static_cast<std::size_t>(me.rank)] = values_of(me.rank, numel);
          all_reduce(me.exchange, Algorithm::kLevels, Element::kF32, mine);
        },
        {.host_names = hosts});
    EXPECT_THAT(errors, testing::Each(""));
    const auto a = values_of(0, numel), b = values_of(1, numel), c = values_of(2, numel),
               d = values_of(3, numel);
    // First inside each site.
    for (std::size_t i = 0; i < numel; ++i) ASSERT_EQ(results[0][i], (a[i] + c[i]) + (b[i] + d[i])) << i;
    for (const auto& each : results) EXPECT_EQ(each, results[0]);
  }
}

TEST(Exchange, ShardsFollowLevelsOfHosts) {
  const auto errors = on_exchange_ranks(
      4,
      [&](Rank me) {
        for (const std::size_t numel : {1ul, 0ul, 1001ul, 100003ul}) {
          const std::vector<float> parts = values_of(me.rank, 4 * numel);
          std::vector<float> sum(numel), expected(numel);
          me.exchange.reduce_scatter(
              {.parts = std::as_bytes(std::span(parts)), .sum = std::as_writable_bytes(std::span(sum))},
              Deadline::after_s(30));
          EXPECT_EQ(parts, values_of(me.rank, 4 * numel));
          std::vector<std::vector<float>> all;
          for (int rank = 0; rank < 4; ++rank) all.push_back(values_of(rank, 4 * numel));
          for (std::size_t i = 0; i < numel; ++i) {
            const std::size_t at = static_cast<std::size_t>(me.rank) * numel + i;
            expected[i] = (all[0][at] + all[2][at]) + (all[1][at] + all[3][at]);
          }
          EXPECT_EQ(sum, expected) << numel;
          std::vector<float> gathered(4 * numel);
          std::ranges::copy(sum, gathered.begin() + static_cast<std::ptrdiff_t>(numel) * me.rank);
          me.exchange.all_gather(std::as_writable_bytes(std::span(gathered)), Deadline::after_s(30));
          for (std::size_t i = 0; i < 4 * numel; ++i)
            ASSERT_EQ(gathered[i], (all[0][i] + all[2][i]) + (all[1][i] + all[3][i])) << i;
        }
      },
      {.host_names = {"a/n0", "b/n1", "a/n2", "b/n3"}});
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(Exchange, AddsNoConnectionsToLostMember) {
  const auto errors = on_exchange_ranks(3, [](Rank me) {
    if (me.rank == 1) return;
    try {
      me.set_lanes(4);
    } catch (const Error&) {
      me.exchange.abort();
      throw;
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("rank"));
  EXPECT_THAT(errors[2], HasSubstr("rank"));
}

TEST(Exchange, RejectsInvalidNumberOfConnections) {
  const auto errors = on_exchange_ranks(2, [](Rank me) {
    EXPECT_THROW(me.set_lanes(0), InvalidArgument);
    EXPECT_THROW(me.set_lanes(kMaxLanes + 1), InvalidArgument);
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(Exchange, DroppedConnectionEndsOperation) {
  const auto errors = on_exchange_ranks(2,
                                        [](Rank me) {
                                          std::vector<float> values(1000000);
                                          if (me.rank == 1) return;
                                          all_reduce(me.exchange, Algorithm::kTwoShot, Element::kF32, values);
                                        },
                                        {.lanes = 4});
  EXPECT_THAT(errors[0], HasSubstr("rank 1"));
}

TEST(Exchange, RejectsIrreducibleInputBeforeSending) {
  const auto errors = on_exchange_ranks(2, [](Rank me) {
    std::vector<float> values(10, 1);
    EXPECT_THROW(all_reduce(me.exchange, Algorithm::kRing, Element::kU8, values), InvalidArgument);
    EXPECT_THROW(all_reduce(me.exchange, Algorithm::kRing, Element::kF32, values, Reduction::kAverage),
                 InvalidArgument);
    all_reduce(me.exchange, Algorithm::kRing, Element::kF32, values);
    EXPECT_THAT(values, testing::Each(2));
  });
  EXPECT_THAT(errors, testing::Each(""));
}

}  // namespace
}  // namespace trireme::topology
