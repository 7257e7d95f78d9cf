#include "trireme/plan/recomputation.h"

#include <gmock/gmock.h>

#include <optional>
#include <tuple>

#include "trireme/base/random.h"
#include "trireme/base/text.h"

namespace trireme::plan {
namespace {

using testing::ElementsAre;

Layer layer(double forward_s, double activation_bytes, double output_bytes) {
  return {.name = "l",
          .forward_s = forward_s,
          .activation_bytes = activation_bytes,
          .output_bytes = output_bytes};
}

TEST(Recomputation, TakesTheLayersThatGiveMostBytesForTheirTime) {
  const std::vector<LiveChain> chains = {
      {.layers = {layer(1, 100, 10), layer(9, 100, 10), layer(2, 100, 10)}}};
  EXPECT_THAT(choose_recomputed(chains, 300).recomputed, ElementsAre(ElementsAre(false, false, false)));
  const Recomputation some = choose_recomputed(chains, 215);
  EXPECT_THAT(some.recomputed, ElementsAre(ElementsAre(true, false, false)));
  EXPECT_EQ(some.peak_bytes, 210);
  EXPECT_EQ(some.added_s, 1);
}

TEST(Recomputation, CountsWhatARecomputedLayerHasInItsBackward) {
  // The last layer's backward comes first, when all others still keep theirs: nothing is gained by it.
  const std::vector<LiveChain> chains = {{.layers = {layer(5, 100, 10), layer(1, 100, 10)}}};
  EXPECT_THAT(choose_recomputed(chains, 150).recomputed, ElementsAre(ElementsAre(true, false)));
  EXPECT_EQ(cost_of(chains, {{false, true}}).peak_bytes, 100 + 10 + 100);
}

TEST(Recomputation, CountsEveryMicrobatchThatIsUnderWay) {
  const std::vector<LiveChain> chains = {{.layers = {layer(1, 100, 10), layer(1, 100, 10)}, .live = 3}};
  EXPECT_EQ(cost_of(chains, {{false, false}}).peak_bytes, 600);
  EXPECT_EQ(cost_of(chains, {{true, true}}).peak_bytes, 3 * 20 + 100);
}

TEST(Recomputation, ReturnsTheSmallestPeakWhereTheBudgetIsOutOfReach) {
  const std::vector<LiveChain> chains = {
      {.layers = {layer(1, 100, 10), layer(9, 100, 10), layer(2, 100, 10)}}};
  const Recomputation smallest = choose_recomputed(chains, 1);
  EXPECT_THAT(smallest.recomputed, ElementsAre(ElementsAre(true, true, false)));
  EXPECT_EQ(smallest.peak_bytes, 10 + 10 + 100);
}

std::vector<LiveChain> random_chains(Random& random) {
  std::vector<LiveChain> chains(1 + random.below(3));
  for (LiveChain& chain : chains) {
    chain.live = static_cast<int>(1 + random.below(3));
    const std::uint64_t count = 1 + random.below(4);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto output = static_cast<double>(random.below(20));
      chain.layers.push_back(layer(static_cast<double>(random.below(10)),
                                   output + static_cast<double>(random.below(50)), output));
    }
  }
  return chains;
}

/// Every choice there is.
Recomputation best_of_all(const std::vector<LiveChain>& chains, double budget_bytes) {
  std::size_t count = 0;
  for (const LiveChain& chain : chains) count += chain.layers.size();
  std::optional<Recomputation> best;
  const auto order = [&](const Recomputation& r) {
    return r.peak_bytes <= budget_bytes ? std::tuple(0, r.added_s, r.peak_bytes)
                                        : std::tuple(1, r.peak_bytes, r.added_s);
  };
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << count); ++bits) {
    std::vector<std::vector<bool>> recomputed;
    std::uint64_t rest = bits;
    for (const LiveChain& chain : chains) {
      auto& of_chain = recomputed.emplace_back();
      for (std::size_t i = 0; i < chain.layers.size(); ++i, rest >>= 1) of_chain.push_back((rest & 1) != 0);
    }
    Recomputation found = cost_of(chains, std::move(recomputed));
    if (!best || order(found) < order(*best)) best = std::move(found);
  }
  return *best;
}

TEST(Recomputation, IsNoWorseThanAnyOtherChoice) {
  Random random(5);
  for (int round = 0; round < 400; ++round) {
    const std::vector<LiveChain> chains = random_chains(random);
    const auto budget = static_cast<double>(random.below(500));
    SCOPED_TRACE(text("round ", round, ", budget ", budget));
    const Recomputation found = choose_recomputed(chains, budget), best = best_of_all(chains, budget);
    EXPECT_EQ(found.peak_bytes <= budget, best.peak_bytes <= budget);
    if (best.peak_bytes <= budget) {
      EXPECT_EQ(found.added_s, best.added_s);
    } else {
      EXPECT_EQ(found.peak_bytes, best.peak_bytes);
    }
  }
}

TEST(Recomputation, ChoosesAmongManyUnequalLayers) {
  Random random(6);
  LiveChain chain;
  double all = 0;
  for (int i = 0; i < 60; ++i) {
    chain.layers.push_back(layer(1 + random.uniform(), 100 + 50 * random.uniform(), 10));
    all += chain.layers.back().activation_bytes;
  }
  const std::vector<LiveChain> chains = {chain};
  const Recomputation half = choose_recomputed(chains, all / 2);
  EXPECT_LE(half.peak_bytes, all / 2);
  EXPECT_GT(half.peak_bytes, all * 0.49);
  EXPECT_LT(half.added_s, 60 * 1.5 / 2);
}

}  // namespace
}  // namespace trireme::plan
