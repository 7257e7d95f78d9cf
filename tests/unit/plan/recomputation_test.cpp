#include "trireme/plan/recomputation.h"

#include <gmock/gmock.h>

#include <optional>
#include <tuple>

#include "trireme/base/random.h"
#include "trireme/base/text.h"

namespace trireme::plan {
namespace {

using testing::ElementsAre;

/// Saves 100 bytes in addition to its input.
Recomputable layer(double forward_s) {
  return {.forward_s = forward_s, .inner_bytes = 100, .output_bytes = 10, .saves_input = true};
}

TEST(Recomputation, TakesLayersWithMostBytesPerTime) {
  const std::vector<LiveChain> chains = {{.layers = {layer(1), layer(9), layer(2)}}};
  EXPECT_THAT(choose_recomputed(chains, 320).recomputed, ElementsAre(ElementsAre(false, false, false)));
  const Recomputation some = choose_recomputed(chains, 225);
  EXPECT_THAT(some.recomputed, ElementsAre(ElementsAre(true, false, false)));
  EXPECT_EQ(some.peak_bytes, 220);
  EXPECT_EQ(some.added_s, 1);
}

TEST(Recomputation, CountsBackwardOfRecomputedLayer) {
  // The last layer's backward comes first, when all other layers still keep their activations. So recomputing
  // it saves nothing.
  const std::vector<LiveChain> chains = {{.layers = {layer(5), layer(1)}}};
  EXPECT_THAT(choose_recomputed(chains, 150).recomputed, ElementsAre(ElementsAre(true, false)));
  EXPECT_EQ(cost_of(chains, {{false, true}}).peak_bytes, 100 + 10 + 100);
}

TEST(Recomputation, CountsKeptActivationsOnce) {
  // Like ReLU and a product: the saved tensors are inside. If it is recomputed, the layer keeps its input
  // instead.
  const Recomputable inside{.forward_s = 1, .inner_bytes = 10, .output_bytes = 10};
  const std::vector<LiveChain> chains = {{.layers = {inside, inside, inside}}};
  EXPECT_EQ(cost_of(chains, {{false, false, false}}).peak_bytes, 30);
  EXPECT_EQ(cost_of(chains, {{false, true, false}}).peak_bytes, 10 + 10 + 10);
  const Recomputable both{.inner_bytes = 0, .output_bytes = 10, .saves_input = true, .saves_output = true};
  EXPECT_EQ(cost_of(std::vector<LiveChain>{{.layers = {both, both}}}, {{false, false}}).peak_bytes, 20);
}

TEST(Recomputation, CountsEveryMicrobatchThatIsUnderWay) {
  const std::vector<LiveChain> chains = {{.layers = {layer(1), layer(1)}, .live = 3}};
  EXPECT_EQ(cost_of(chains, {{false, false}}).peak_bytes, 3 * 210);
  EXPECT_EQ(cost_of(chains, {{true, true}}).peak_bytes, 3 * 10 + 100);
}

TEST(Recomputation, ReturnsSmallestPeakForUnreachableBudget) {
  const std::vector<LiveChain> chains = {{.layers = {layer(1), layer(9), layer(2)}}};
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
      chain.layers.push_back({.forward_s = static_cast<double>(random.below(10)),
                              .inner_bytes = static_cast<double>(random.below(50)),
                              .output_bytes = static_cast<double>(random.below(20)),
                              .saves_input = random.below(2) == 1,
                              .saves_output = random.below(2) == 1});
    }
  }
  return chains;
}

/// The best of all possible choices.
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
    chain.layers.push_back(layer(1 + random.uniform()));
    chain.layers.back().inner_bytes = 100 + 50 * random.uniform();
    all += chain.layers.back().inner_bytes + 10;
  }
  const std::vector<LiveChain> chains = {chain};
  const Recomputation half = choose_recomputed(chains, all / 2);
  EXPECT_LE(half.peak_bytes, all / 2);
  EXPECT_GT(half.peak_bytes, all * 0.49);
  EXPECT_LT(half.added_s, 60 * 1.5 / 2);
}

}  // namespace
}  // namespace trireme::plan
