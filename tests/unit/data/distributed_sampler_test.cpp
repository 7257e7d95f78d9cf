// Samples of the ranks, through libtorch's own loader.
#include "trireme/data/distributed_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/samplers/serialize.h>
#include <torch/serialize.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

using Indices = std::vector<std::size_t>;
using Batches = std::vector<Indices>;

/// A batch is the list of its sample numbers.
struct NumberedSamples : torch::data::datasets::BatchDataset<NumberedSamples, Indices> {
  explicit NumberedSamples(std::size_t the_size) : num_samples(the_size) {}
  Indices get_batch(c10::ArrayRef<std::size_t> indices) override { return indices.vec(); }
  std::optional<std::size_t> size() const override { return num_samples; }
  std::size_t num_samples;
};

auto loader_of(const DistributedSampler& sampler, std::size_t num_samples, std::size_t batch_size,
               std::size_t workers = 0) {
  return torch::data::make_data_loader(NumberedSamples(num_samples), sampler,
                                       torch::data::DataLoaderOptions(batch_size).workers(workers));
}

template <class Loader>
Batches pass_over(Loader& loader) {
  Batches batches;
  for (const Indices& batch : loader) batches.push_back(batch);
  return batches;
}

/// The global batches of one epoch, joined from the parts of the ranks in rank order.
Batches epoch_of_ranks(std::int64_t num_samples, std::size_t batch_size, int world_size, LastBatch last_batch,
                       std::uint64_t epoch) {
  Batches all;
  for (int rank = 0; rank < world_size; ++rank) {
    DistributedSampler sampler(num_samples,
                               {.rank = rank, .world_size = world_size, .seed = 7, .last_batch = last_batch});
    sampler.set_epoch(epoch);
    const auto loader = loader_of(sampler, static_cast<std::size_t>(num_samples), batch_size);
    const Batches mine = pass_over(*loader);
    all.resize(std::max(all.size(), mine.size()));
    for (std::size_t i = 0; i < mine.size(); ++i) all[i].insert(all[i].end(), mine[i].begin(), mine[i].end());
  }
  return all;
}

Indices joined(const Batches& batches) {
  Indices all;
  for (const Indices& each : batches) all.insert(all.end(), each.begin(), each.end());
  return all;
}

TEST(DistributedSampler, GlobalBatchesAreEqualForAnyRanks) {
  for (const std::int64_t num_samples : {50, 48, 49, 13, 1}) {
    const Batches of_one = epoch_of_ranks(num_samples, 12, 1, LastBatch::kSmaller, 3);
    Indices sorted = joined(of_one), expected(static_cast<std::size_t>(num_samples));
    std::ranges::sort(sorted);
    std::iota(expected.begin(), expected.end(), std::size_t{0});
    EXPECT_EQ(sorted, expected);
    for (const int ranks : {2, 3, 4})
      EXPECT_EQ(
          epoch_of_ranks(num_samples, 12 / static_cast<std::size_t>(ranks), ranks, LastBatch::kSmaller, 3),
          of_one)
          << num_samples << " samples over " << ranks;
  }
}

TEST(DistributedSampler, DropsIncompleteBatchOnAllRanks) {
  const Batches batches = epoch_of_ranks(50, 4, 3, LastBatch::kDropped, 0);
  ASSERT_EQ(batches.size(), 4u);
  for (const Indices& batch : batches) EXPECT_EQ(batch.size(), 12u);
  const DistributedSampler dropping(50, {.world_size = 3, .last_batch = LastBatch::kDropped});
  EXPECT_EQ(dropping.num_batches(4), 4);
  EXPECT_EQ(DistributedSampler(50, {.world_size = 3}).num_batches(4), 5);
}

TEST(DistributedSampler, SequentialOrderIsThatOfTheSamples) {
  DistributedSampler sampler(6, {.rank = 1, .world_size = 2, .order = Order::kSequential});
  EXPECT_EQ(pass_over(*loader_of(sampler, 6, 2)), (Batches{{2, 3}, {5}}));
}

TEST(DistributedSampler, EachPassIsNextEpochUnlessSet) {
  DistributedSampler sampler(40, {.seed = 7});
  const auto loader = loader_of(sampler, 40, 8, /*workers=*/2);
  const Batches first = pass_over(*loader), second = pass_over(*loader);
  EXPECT_NE(first, second);
  EXPECT_EQ(second, epoch_of_ranks(40, 8, 1, LastBatch::kSmaller, 1));
  sampler.set_epoch(0);
  EXPECT_EQ(pass_over(*loader), first) << "set on the caller's copy";
  DistributedSampler other_seed(40, {.seed = 8});
  EXPECT_NE(pass_over(*loader_of(other_seed, 40, 8)), first);
}

TEST(DistributedSampler, ResumesMidEpochWithPrefetchingLoader) {
  DistributedSampler sampler(40, {.seed = 7});
  Batches expected = epoch_of_ranks(40, 8, 1, LastBatch::kSmaller, 2);
  expected.erase(expected.begin(), expected.begin() + 3);
  sampler.seek(2, 3);
  const auto loader = loader_of(sampler, 40, 8, /*workers=*/2);
  EXPECT_EQ(pass_over(*loader), expected);
  EXPECT_EQ(pass_over(*loader), epoch_of_ranks(40, 8, 1, LastBatch::kSmaller, 3))
      << "the next epoch is whole";
}

TEST(DistributedSampler, IsSavedAndLoadedWhereItIs) {
  DistributedSampler sampler(40, {.seed = 7}), other(40, {.seed = 7});
  sampler.seek(5, 1);
  sampler.reset();
  sampler.next(8);
  std::stringstream bytes;
  torch::save(sampler, bytes);
  torch::load(other, bytes);
  other.reset();
  for (int batch = 2; batch < 5; ++batch) EXPECT_EQ(other.next(8), sampler.next(8));
  EXPECT_EQ(other.next(8), std::nullopt);
}

TEST(DistributedSampler, RejectsRankOutsideWorldAndEmptyData) {
  using testing::ThrowsMessage;
  EXPECT_THAT([] { DistributedSampler(4, {.rank = 2, .world_size = 2}); },
              ThrowsMessage<InvalidArgument>(testing::HasSubstr("rank 2 of 2")));
  EXPECT_THROW(DistributedSampler(0, {}), InvalidArgument);
  DistributedSampler sampler(4, {});
  EXPECT_THROW(sampler.seek(0, -1), InvalidArgument);
}

}  // namespace
}  // namespace trireme::data
