#include "trireme/data/tolerant.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "trireme/data/loader.h"

namespace trireme::data {
namespace {

using testing::HasSubstr;

/// Sample i is the number i. Some samples cannot be read, and the first reads of any sample fail.
class Damaged : public Dataset {
 public:
  Damaged(std::int64_t size, std::set<std::int64_t> broken, int failing_reads = 0)
      : size_(size), broken_(std::move(broken)), failing_(failing_reads) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override {
    if (failing_-- > 0) throw ReadError(text("numbers.bin: sample ", index, ": the disk does not answer"));
    if (broken_.contains(index)) throw DataError(text("numbers.bin: sample ", index, " is damaged"));
    return {at::full({1}, static_cast<double>(index)), at::scalar_tensor(index, at::kLong)};
  }

 private:
  std::int64_t size_;
  std::set<std::int64_t> broken_;
  mutable std::atomic<int> failing_;
};

std::shared_ptr<const Dataset> around(std::set<std::int64_t> broken, const ToleranceOptions& options,
                                      int failing_reads = 0, std::int64_t size = 8) {
  return with_retries(std::make_shared<Damaged>(size, std::move(broken), failing_reads), options);
}

std::vector<std::int64_t> numbers_in(const Example& batch) {
  const auto* first = batch.target->const_data_ptr<std::int64_t>();
  return {first, first + batch.rows()};
}

std::vector<std::int64_t> all_of(const Dataset& samples) {
  return numbers_in(samples.trial_batch(samples.size()));
}

TEST(Retries, RepeatsReadThatMaySucceedAndCounts) {
  LoadingCounts counts;
  {
    const LoadingMeter meter(counts);
    EXPECT_EQ(all_of(*around({}, {.retries = 3, .first_pause_s = 1e-4}, 3)).size(), 8U);
  }
  EXPECT_EQ(counts.retries, 3);
  EXPECT_EQ(counts.skipped, 0);
  EXPECT_THAT([] { all_of(*around({}, {.retries = 2, .first_pause_s = 1e-4}, 3)); },
              testing::ThrowsMessage<DataError>(
                  HasSubstr("sample 0: the disk does not answer; repair or remove it")));
}

TEST(Retries, DoesNotRepeatDamagedSamples) {
  LoadingCounts counts;
  {
    const LoadingMeter meter(counts);
    EXPECT_THROW(all_of(*around({3}, {.first_pause_s = 1e-4})), DataError);
  }
  EXPECT_EQ(counts.retries, 0);
}

TEST(Retries, NextReadableSampleReplacesDamagedOne) {
  const auto samples = around({2, 3, 7}, {.skip = true});
  LoadingCounts counts;
  testing::internal::CaptureStderr();
  {
    const LoadingMeter meter(counts);
    for (int again = 0; again < 2; ++again)
      EXPECT_EQ(all_of(*samples), (std::vector<std::int64_t>{0, 1, 4, 4, 4, 5, 6, 0}));
    EXPECT_EQ(samples->get(7).target->item<std::int64_t>(), 0);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  for (const int sample : {2, 3, 7}) {
    const std::string line =
        text("sample ", sample, " cannot be read: numbers.bin: sample ", sample, " is damaged");
    ASSERT_THAT(said, HasSubstr(line));
    EXPECT_EQ(said.find(line, said.find(line) + 1), std::string::npos);
  }
  EXPECT_EQ(counts.skipped, 4 + 4 + 1);
}

TEST(Retries, ReplacesThroughLoaderForAnyWorkers) {
  for (const int workers : {1, 3}) {
    Loader loader(around({2, 3, 7}, {.skip = true}),
                  {.global_batch = 8, .workers = workers, .order = Order::kSequential});
    EXPECT_EQ(numbers_in(loader.next().microbatches[0]), (std::vector<std::int64_t>{0, 1, 4, 4, 4, 5, 6, 0}));
    EXPECT_GE(loader.report().counts.skipped, 4);
  }
}

TEST(Retries, GivesUpWhereNothingCanBeRead) {
  EXPECT_THAT(
      [] {
        around({0, 1, 2}, {.skip = true}, 0, 3)->get(1);
      },
      testing::ThrowsMessage<DataError>(HasSubstr("the last of 3 samples in a row that cannot be read")));
}

TEST(Retries, RejectsNegativeNumbers) {
  EXPECT_THROW(around({}, {.retries = -1}), InvalidArgument);
  EXPECT_THROW(around({}, {.first_pause_s = -1}), InvalidArgument);
}

}  // namespace
}  // namespace trireme::data
