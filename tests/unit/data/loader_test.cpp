#include "trireme/data/loader.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

using testing::HasSubstr;

/// Sample i is the number i. Later batches may be read faster than earlier ones.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t size, std::int64_t broken = -1) : size_(size), broken_(broken) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override {
    if (index == broken_) throw DataError(text("numbers.bin: sample ", index, " is damaged"));
    if (index % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    return {at::full({1}, static_cast<double>(index)), at::scalar_tensor(index, at::kLong)};
  }

 private:
  std::int64_t size_, broken_;
};

std::vector<std::int64_t> samples(const StepBatch& batch) {
  std::vector<std::int64_t> result;
  for (const Example& part : batch.microbatches) {
    for (std::int64_t i = 0; i < part.target->size(0); ++i)
      result.push_back((*part.target)[i].item<std::int64_t>());
  }
  return result;
}

std::vector<std::int64_t> samples(Loader& loader, int num_batches) {
  std::vector<std::int64_t> result;
  for (int i = 0; i < num_batches; ++i) {
    for (const std::int64_t sample : samples(loader.next())) result.push_back(sample);
  }
  return result;
}

TEST(Loader, OrderDoesNotDependOnWorkers) {
  const auto numbers = std::make_shared<Numbers>(103);
  Loader one(numbers, {.global_batch = 8, .workers = 1, .prefetch = 1, .seed = 3});
  Loader four(numbers, {.global_batch = 8, .workers = 4, .prefetch = 6, .seed = 3});
  EXPECT_EQ(samples(one, 30), samples(four, 30));
}

TEST(Loader, DeliversOrderOfSamplerIntoNextEpoch) {
  Loader loader(std::make_shared<Numbers>(10), {.global_batch = 4, .workers = 2, .seed = 5});
  const Sampler sampler(10, {.seed = 5});
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> seen;
    for (std::int64_t batch = 0; batch < 3; ++batch) {
      const StepBatch step = loader.next();
      EXPECT_EQ(step.epoch, epoch);
      EXPECT_EQ(step.batch, batch);
      EXPECT_EQ(step.global_size, batch == 2 ? 2 : 4);
      for (const std::int64_t sample : samples(step)) seen.push_back(sample);
    }
    const EpochOrder order = sampler.order_of(epoch);
    for (std::size_t place = 0; place < seen.size(); ++place)
      EXPECT_EQ(seen[place], order[static_cast<std::int64_t>(place)]);
    EXPECT_EQ(seen.size(), 10U);
  }
}

TEST(Loader, RanksAndMicroBatchesFormGlobalBatch) {
  const auto numbers = std::make_shared<Numbers>(23);
  for (const int world_size : {1, 2, 3}) {
    for (const int num_microbatches : {1, 2}) {
      Loader whole(numbers, {.global_batch = 9, .seed = 1});
      std::vector<std::unique_ptr<Loader>> ranks;
      for (int rank = 0; rank < world_size; ++rank) {
        ranks.push_back(std::make_unique<Loader>(numbers, StreamOptions{.global_batch = 9,
                                                                        .num_microbatches = num_microbatches,
                                                                        .rank = rank,
                                                                        .world_size = world_size,
                                                                        .seed = 1}));
      }
      for (int step = 0; step < 3; ++step) {
        std::vector<std::int64_t> joined;
        for (const auto& rank : ranks) {
          const StepBatch part = rank->next();
          EXPECT_EQ(part.microbatches.size(), static_cast<std::size_t>(num_microbatches));
          EXPECT_EQ(part.global_size, step == 2 ? 5 : 9);
          for (const std::int64_t sample : samples(part)) joined.push_back(sample);
        }
        EXPECT_EQ(joined, samples(whole.next())) << world_size << " ranks, " << num_microbatches;
      }
    }
  }
}

TEST(Loader, ReassignedSharesApplyFromTheirStep) {
  std::vector<std::unique_ptr<Loader>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(
        std::make_unique<Loader>(std::make_shared<Numbers>(22), StreamOptions{.global_batch = 8,
                                                                              .num_microbatches = 2,
                                                                              .rank = rank,
                                                                              .world_size = 2,
                                                                              .order = Order::kSequential,
                                                                              .balance = Balance::kDynamic}));
  std::vector<std::vector<std::size_t>> sizes;
  for (std::uint64_t step = 0; step < 9; ++step) {
    std::vector<std::int64_t> joined, expected;
    sizes.emplace_back();
    for (const auto& rank : ranks) {
      if (step == 1) rank->assign_shares(2, {6, 2});
      if (step == 4) rank->assign_shares(4, {3, 5});
      EXPECT_EQ(rank->report().share, step < 2           ? 4
                                      : rank == ranks[0] ? (step < 4 ? 6 : 3)
                                      : step < 4         ? 2
                                                         : 5);
      const std::vector<std::int64_t> mine = samples(rank->next());
      joined.insert(joined.end(), mine.begin(), mine.end());
      sizes.back().push_back(mine.size());
    }
    for (std::int64_t place = 0; place < (step % 3 == 2 ? 6 : 8); ++place)
      expected.push_back(static_cast<std::int64_t>(step % 3) * 8 + place);
    EXPECT_EQ(joined, expected) << step;
  }
  using Sizes = std::vector<std::vector<std::size_t>>;
  EXPECT_EQ(sizes, (Sizes{{4, 4}, {4, 4}, {4, 2}, {6, 2}, {3, 5}, {4, 2}, {3, 5}, {3, 5}, {4, 2}}))
      << "the last batch of an epoch is dealt equally";
  for (const auto& rank : ranks) rank->seek(1);
  EXPECT_EQ(samples(ranks[1]->next()), (std::vector<std::int64_t>{12, 13, 14, 15})) << "equally again";
}

TEST(Loader, DeliversBatchesWithoutPinnedMemory) {
  Loader loader(std::make_shared<Numbers>(8),
                {.global_batch = 4, .order = Order::kSequential, .pinned = true});
  EXPECT_EQ(samples(loader, 2), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_FALSE(loader.next().microbatches.front().input->is_pinned()) << "no device is here";
}

/// The batch with the sample `held` can be read only after its release.
class HeldNumbers : public Numbers {
 public:
  HeldNumbers(std::int64_t size, std::int64_t held) : Numbers(size), held_(held) {}
  Example get_batch(std::span<const std::int64_t> indices) const override {
    if (indices.front() == held_) {
      is_asked_for_ = true;
      is_asked_for_.notify_all();
      may_be_read_.wait(false);
    }
    return Numbers::get_batch(indices);
  }
  void wait_until_asked_for() const { is_asked_for_.wait(false); }
  void let_be_read() {
    may_be_read_ = true;
    may_be_read_.notify_all();
  }

 private:
  std::int64_t held_;
  mutable std::atomic<bool> is_asked_for_ = false;
  std::atomic<bool> may_be_read_ = false;
};

TEST(Loader, ReassignedBatchesAreReadAgain) {
  const auto numbers = std::make_shared<HeldNumbers>(100, 8);
  Loader loader(numbers, {.global_batch = 4,
                          .world_size = 2,
                          .workers = 1,
                          .order = Order::kSequential,
                          .balance = Balance::kDynamic});
  EXPECT_EQ(samples(loader.next()), (std::vector<std::int64_t>{0, 1}));
  numbers->wait_until_asked_for();
  loader.assign_shares(2, {3, 1});
  EXPECT_EQ(samples(loader.next()), (std::vector<std::int64_t>{4, 5}));
  numbers->let_be_read();
  EXPECT_EQ(samples(loader.next()), (std::vector<std::int64_t>{8, 9, 10}));
  EXPECT_EQ(samples(loader.next()), (std::vector<std::int64_t>{12, 13, 14}));
}

TEST(Loader, ReadsAgainAfterBatchesHaveGrown) {
  const auto numbers = std::make_shared<HeldNumbers>(100, 8);
  Loader loader(numbers, {.global_batch = 8,
                          .ramp = {{.until = BatchLayout::kMaxSteps, .size = 4}},
                          .world_size = 2,
                          .workers = 1,
                          .order = Order::kSequential});
  EXPECT_EQ(samples(loader.next()), (std::vector<std::int64_t>{0, 1}));
  numbers->wait_until_asked_for();
  loader.change_ramp(2, {{.until = 2, .size = 4}});
  EXPECT_EQ(samples(loader.next()), (std::vector<std::int64_t>{4, 5}));
  numbers->let_be_read();
  EXPECT_EQ(samples(loader.next()), (std::vector<std::int64_t>{8, 9, 10, 11}));
  loader.seek(3);
  EXPECT_EQ(samples(loader.next()), (std::vector<std::int64_t>{16, 17, 18, 19})) << "seek keeps the ramp";
  EXPECT_THROW(loader.change_ramp(3, {{.until = 9, .size = 4}}), InvalidArgument)
      << "it has been handed over";
  EXPECT_THROW(loader.change_ramp(9, {{.until = 9, .size = 1}}), InvalidArgument)
      << "no sample for each rank";
}

TEST(Loader, RejectsInvalidSharesAndPastSteps) {
  const StreamOptions options{
      .global_batch = 8, .num_microbatches = 2, .world_size = 2, .balance = Balance::kDynamic};
  Loader loader(std::make_shared<Numbers>(22), options);
  const auto error_of = [&](std::uint64_t from, const Shares& shares) -> std::string {
    try {
      loader.assign_shares(from, shares);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "none";
  };
  loader.next();
  loader.next();
  EXPECT_EQ(error_of(2, {6, 2}), "none");
  EXPECT_THAT(error_of(1, {6, 2}), HasSubstr("step 1 cannot get other shares: 2 have been handed over"));
  EXPECT_THAT(error_of(2, {8}), HasSubstr("shares for 1 of 2 ranks"));
  EXPECT_THAT(error_of(2, {4, 3}), HasSubstr("add up to 7 of the batch's 8 samples"));
  EXPECT_THAT(error_of(2, {7, 1}), HasSubstr("no sample for each of 2 micro-batches"));
  Loader equal(std::make_shared<Numbers>(22), {.global_batch = 8, .world_size = 2});
  EXPECT_THROW(equal.assign_shares(0, {4, 4}), InvalidArgument);
}

TEST(Loader, RankWithoutSamplesGetsEmptyMicroBatches) {
  // 9 samples in batches of 8. The last batch has one sample for four ranks.
  Loader loader(std::make_shared<Numbers>(9),
                {.global_batch = 8, .num_microbatches = 2, .rank = 3, .world_size = 4});
  EXPECT_EQ(samples(loader.next()).size(), 2U);
  const StepBatch last = loader.next();
  ASSERT_EQ(last.microbatches.size(), 2U);
  EXPECT_EQ(last.microbatches[0].input->sizes(), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(last.global_size, 1);
}

TEST(Loader, SeekContinuesLikeUninterruptedRun) {
  const auto numbers = std::make_shared<Numbers>(50);
  const StreamOptions options = {.global_batch = 8, .workers = 3, .seed = 2};
  Loader whole(numbers, options);
  samples(whole, 7 + 4);
  Loader resumed(numbers, options);
  resumed.seek(7 + 4);
  const std::vector<std::int64_t> expected = samples(whole, 6);
  EXPECT_EQ(samples(resumed, 6), expected);
  // Also while batches are prefetched.
  resumed.seek(7 + 4);
  EXPECT_EQ(samples(resumed, 6), expected);
}

TEST(Loader, FailedReadAppearsInItsPlace) {
  Loader loader(std::make_shared<Numbers>(12, 9),
                {.global_batch = 4, .workers = 3, .order = Order::kSequential});
  EXPECT_EQ(samples(loader, 2).size(), 8U);
  for (int again = 0; again < 2; ++again) {
    try {
      loader.next();
      FAIL() << "no error";
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(), "numbers.bin: sample 9 is damaged");
    }
  }
  loader.seek(3);
  EXPECT_EQ(samples(loader, 1).size(), 4U);
}

TEST(Loader, InvalidTargetsAreRejectedWithTheirSamples) {
  const auto check = [](const Example& batch, std::span<const std::int64_t> indices) {
    EXPECT_EQ(batch.target->size(0), static_cast<std::int64_t>(indices.size()));
    if (indices[0] == 4) throw DataError("sample 4 has no target");
  };
  Loader loader(std::make_shared<Numbers>(12),
                {.global_batch = 4, .order = Order::kSequential, .check_targets = check});
  EXPECT_EQ(samples(loader, 1).size(), 4U);
  EXPECT_THAT([&] { loader.next(); }, testing::ThrowsMessage<DataError>(HasSubstr("sample 4 has no target")));
}

TEST(Loader, CanBeDestroyedAtAnyTime) {
  const auto numbers = std::make_shared<Numbers>(100);
  for (int consumed = 0; consumed < 20; ++consumed) {
    Loader loader(numbers, {.global_batch = 4, .workers = 4, .prefetch = 3});
    samples(loader, consumed);
  }
}

TEST(Loader, EndlessReadFailsAfterTimeout) {
  class Stuck : public Dataset {
   public:
    std::int64_t size() const override { return 4; }
    Example get(std::int64_t) const override {
      while (!released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return {at::full({1}, 0.0), at::scalar_tensor(0, at::kLong)};
    }
    mutable std::atomic<bool> released = false;
  };
  const auto stuck = std::make_shared<Stuck>();
  Loader loader(stuck, {.global_batch = 2, .timeout_s = 0.02});
  EXPECT_THROW(loader.next(), DataError);
  stuck->released = true;
}

TEST(Loader, RejectsUnsplittableBatchWithNumbers) {
  const auto error_of = [](std::int64_t size, const StreamOptions& options) {
    try {
      Loader loader(std::make_shared<Numbers>(size), options);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of(2, {.world_size = 3}), HasSubstr("2 samples for 3 ranks"));
  EXPECT_THAT(error_of(100, {.global_batch = 5, .num_microbatches = 2, .world_size = 3}),
              HasSubstr("global batch of 5 cannot be split over 3 ranks with 2 micro-batches"));
  EXPECT_THAT(error_of(100, {.workers = -1}), HasSubstr("at least one worker, not -1"));
  EXPECT_THAT(error_of(100, {.rank = 2, .world_size = 2}), HasSubstr("rank 2"));
}

/// One number of one sample is NaN.
class NumbersWithNan : public Numbers {
 public:
  NumbersWithNan() : Numbers(16) {}
  Example get(std::int64_t index) const override {
    Example example = Numbers::get(index);
    if (index == 11) example.input->fill_(std::nan(""));
    return example;
  }
};

TEST(Loader, NamesSampleThatIsNoNumber) {
  Loader loader(std::make_shared<NumbersWithNan>(), {.global_batch = 16, .order = Order::kSequential});
  try {
    loader.next();
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("sample 11"), HasSubstr("nan"), HasSubstr("finite")));
  }
}

/// Throws an exception without the number of the sample, as other libraries do.
class NumbersOfForeignCode : public Numbers {
 public:
  explicit NumbersOfForeignCode(bool whole_batches) : Numbers(16), whole_batches_(whole_batches) {}
  Example get(std::int64_t index) const override {
    if (index == 5) throw std::length_error("vector::reserve");
    return Numbers::get(index);
  }
  Example get_batch(std::span<const std::int64_t> indices) const override {
    if (whole_batches_) get(5);
    return Numbers::get_batch(indices);
  }

 private:
  bool whole_batches_;
};

TEST(Loader, NamesSampleOfErrorWithoutOne) {
  const auto error_of = [](bool whole_batches) {
    Loader loader(std::make_shared<NumbersOfForeignCode>(whole_batches),
                  {.global_batch = 16, .order = Order::kSequential});
    try {
      loader.next();
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error_of(false), "sample 5: vector::reserve");
  EXPECT_EQ(error_of(true), "a batch of samples 0, 1, 2 and 13 more: vector::reserve");
}

TEST(Loader, ReportsReadsAndPrefetchDepth) {
  Loader loader(std::make_shared<Numbers>(64), {.global_batch = 8, .num_microbatches = 2, .workers = 2});
  samples(loader, 8);
  const LoadingReport report = loader.report();
  EXPECT_EQ(report.batches, 8);
  EXPECT_GE(report.counts.samples, 64);
  EXPECT_GT(report.counts.busy_s, 0);
  EXPECT_GE(report.fill, 0);
  EXPECT_LE(report.fill, 1);
  EXPECT_EQ(report.workers, 2);
  EXPECT_EQ(report.prefetch, 4);
}

/// Takes long to read, without using a processor.
class SlowNumbers : public Numbers {
 public:
  SlowNumbers() : Numbers(64) {}
  Example get_batch(std::span<const std::int64_t> indices) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return Numbers::get_batch(indices);
  }
};

TEST(Loader, AddsThreadsWhereStepsWait) {
  const auto slow = std::make_shared<SlowNumbers>();
  Loader loader(slow, {.global_batch = 4, .workers = 0, .max_workers = 3, .seed = 1});
  Loader fixed(slow, {.global_batch = 4, .workers = 3, .seed = 1});
  EXPECT_EQ(loader.report().workers, 1);
  int steps = 0;
  for (; steps < 400 && loader.report().workers < 3; ++steps)
    EXPECT_EQ(samples(loader.next()), samples(fixed.next()));
  EXPECT_EQ(loader.report().workers, 3) << "after " << steps << " steps";
}

/// The sample of each epoch is the number of the epoch.
class EpochNumber : public Numbers {
 public:
  explicit EpochNumber(std::uint64_t epoch = 0) : Numbers(4), epoch_(epoch) {}
  Example get(std::int64_t index) const override {
    return {at::full({1}, static_cast<double>(epoch_)), Numbers::get(index).target};
  }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    return std::make_shared<EpochNumber>(epoch);
  }

 private:
  std::uint64_t epoch_;
};

TEST(Loader, ReadsDatasetAsOfEachEpoch) {
  Loader loader(std::make_shared<EpochNumber>(), {.global_batch = 2});
  for (int step = 0; step < 6; ++step) {
    const int epoch = step / 2;
    EXPECT_EQ((*loader.next().microbatches[0].input)[0].item<float>(), static_cast<float>(epoch));
  }
  loader.seek(7 * 2 + 1);
  EXPECT_EQ((*loader.next().microbatches[0].input)[0].item<float>(), 7);
}

TEST(Loader, OversizedGlobalBatchIsWholeEpoch) {
  const auto options = StreamOptions{.global_batch = std::numeric_limits<std::int64_t>::max()};
  Loader loader(std::make_shared<Numbers>(5), options);
  EXPECT_EQ(samples(loader, 2).size(), 10U);
}

TEST(Loader, SeekAfterDamageReadsEverythingAgain) {
  Loader loader(std::make_shared<Numbers>(64, 13),
                {.global_batch = 16, .workers = 3, .prefetch = 2, .order = Order::kSequential});
  for (int again = 0; again < 20; ++again) {
    loader.seek(0);
    EXPECT_THROW(loader.next(), DataError);
    loader.seek(1);
    EXPECT_EQ(samples(loader.next()).front(), 16);
  }
}

TEST(Loader, IsReadyWithNextStepOrError) {
  const auto becomes_ready = [](const Loader& loader) {
    for (int i = 0; i < 20000 && !loader.is_ready(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return loader.is_ready();
  };
  Loader loader(std::make_shared<Numbers>(40), {.global_batch = 8, .seed = 1});
  EXPECT_FALSE(loader.is_ready()) << "nothing is read before the first step";
  for (int step = 0; step < 6; ++step) {
    loader.next();
    EXPECT_TRUE(becomes_ready(loader));
  }
  loader.seek(2);
  loader.next();
  EXPECT_TRUE(becomes_ready(loader));
  Loader broken(std::make_shared<Numbers>(16, 12), {.global_batch = 8, .order = Order::kSequential});
  broken.next();
  EXPECT_TRUE(becomes_ready(broken));
  EXPECT_THROW(broken.next(), DataError);
  EXPECT_TRUE(broken.is_ready()) << "the same again";
}

}  // namespace
}  // namespace trireme::data
