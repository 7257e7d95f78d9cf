#include "trireme/plan/chain_cuts.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "tests/unit/plan/random_layers.h"
#include "trireme/base/error.h"

namespace trireme::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

std::vector<Layer> layers_of(const std::vector<double>& times) {
  std::vector<Layer> layers;
  for (const double time : times) layers.push_back({.name = "l", .forward_s = time});
  return layers;
}

/// The slowest stage or link of a cut.
double slowest_s(const Profile& profile, const std::vector<std::size_t>& ends, const ChainOptions& options) {
  double slowest = 0;
  std::size_t from = 0;
  for (std::size_t stage = 0; stage < ends.size(); ++stage) {
    const Work work = profile.between(from, ends[stage]);
    const double link_s = 2 * profile.output_bytes(ends[stage]) / options.bandwidth_bytes_per_s;
    slowest = std::max({slowest, work.compute_s, link_s});
    from = ends[stage];
  }
  return slowest;
}

double slowest_of_all_cuts(const Profile& profile, const ChainOptions& options) {
  double best = kInfinity;
  for_every_cut(options.num_stages, profile.last_cut(), [&](const std::vector<std::size_t>& ends) {
    best = std::min(best, slowest_s(profile, ends, options));
  });
  return best;
}

class ChainCuts : public testing::TestWithParam<ChainOptions> {};

TEST_P(ChainCuts, AreTheBestOfAllCuts) {
  std::mt19937 random(7);
  for (std::size_t num_layers = 1; num_layers <= 9; ++num_layers) {
    const std::vector<Layer> layers = random_layers(num_layers, random);
    const Profile profile{std::span(layers)};
    for (std::size_t num_stages = 1; num_stages <= num_layers; ++num_stages) {
      ChainOptions options = GetParam();
      options.num_stages = num_stages;
      const double best = slowest_of_all_cuts(profile, options);
      std::vector<std::size_t> ends = cut_chain(layers, options);
      EXPECT_EQ(ends.size(), num_stages - 1);
      ends.push_back(num_layers);
      EXPECT_DOUBLE_EQ(slowest_s(profile, ends, options), best) << num_layers << " " << num_stages;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, ChainCuts,
                         testing::Values(ChainOptions{}, ChainOptions{.bandwidth_bytes_per_s = 12}),
                         [](const auto& test) { return "Row" + std::to_string(test.index); });

TEST(CutChain, KeepsTheOtherStagesEven) {
  EXPECT_THAT(cut_chain(layers_of({1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), {.num_stages = 4}), ElementsAre(2, 4, 7));
  EXPECT_THAT(cut_chain(layers_of({10, 1, 1, 1, 1, 1, 1}), {.num_stages = 3}), ElementsAre(1, 4));
  EXPECT_THAT(cut_chain(layers_of({1, 1, 1, 1}), {.num_stages = 4}), ElementsAre(1, 2, 3));
  EXPECT_THAT(cut_chain(layers_of({1, 1, 1, 1}), {.num_stages = 1}), IsEmpty());
}

TEST(CutChain, GivesReplicatedStageProportionalWork) {
  const std::vector<Layer> layers = layers_of({1, 1, 1, 1, 1, 1});
  EXPECT_THAT(cut_chain(layers, {.num_stages = 2}), ElementsAre(3));
  EXPECT_THAT(cut_chain(layers, {.num_stages = 2, .replicas = {2, 1}}), ElementsAre(4));
  EXPECT_THAT(cut_chain(layers, {.num_stages = 2, .replicas = {1, 2}}), ElementsAre(2));
  EXPECT_THROW(cut_chain(layers, {.num_stages = 2, .replicas = {2}}), InvalidArgument);
}

TEST(CutChain, AvoidsTheSlowLink) {
  std::vector<Layer> layers = layers_of({1, 1, 1, 1});
  layers[1].output_bytes = 100;
  EXPECT_THAT(cut_chain(layers, {.num_stages = 2}), ElementsAre(2));
  EXPECT_THAT(cut_chain(layers, {.num_stages = 2, .bandwidth_bytes_per_s = 50}),
              testing::Not(ElementsAre(2)));
}

TEST(CutChain, RejectsInvalidOptions) {
  const std::vector<Layer> layers = layers_of({1, 2, 3});
  const auto refused = [&](const ChainOptions& options, const char* message) {
    EXPECT_THAT([&] { cut_chain(layers, options); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refused({.num_stages = 4}, "found 4 stages for 3 layers");
  refused({.num_stages = 0}, "at least 1 stage, found 0");
  refused({.bandwidth_bytes_per_s = 0}, "bandwidth_bytes_per_s is 0");
}

}  // namespace
}  // namespace trireme::plan
