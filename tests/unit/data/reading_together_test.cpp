// Several threads of a loader that read the rows of one batch.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/data/loader.h"

namespace trireme::data {
namespace {

/// A sample before `until` is read only when two threads are reading. For later ones the reading thread is
/// recorded.
class ReadByTwo : public Dataset {
 public:
  explicit ReadByTwo(std::int64_t until) : until_(until) {}
  std::int64_t size() const override { return 64; }
  Example get(std::int64_t index) const override {
    std::unique_lock lock(mutex_);
    if (index == 0 || index >= until_) {  // the first is read by one thread, to measure the time of a row
      if (index >= until_) readers_.insert(std::this_thread::get_id());
    } else {
      reading_.insert(std::this_thread::get_id());
      come_.notify_all();
      if (!come_.wait_for(lock, std::chrono::seconds(10), [&] { return reading_.size() >= 2; }))
        throw DataError(text("sample ", index, " was read by one thread"));
    }
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    return {at::full({1}, static_cast<double>(index)), at::scalar_tensor(index, at::kLong)};
  }
  std::size_t num_readers() const {
    const std::lock_guard lock(mutex_);
    return readers_.size();
  }

 private:
  const std::int64_t until_;
  mutable std::mutex mutex_;
  mutable std::condition_variable come_;
  mutable std::set<std::thread::id> reading_, readers_;
};

TEST(Loader, AllThreadsReadAwaitedBatch) {
  for (const int workers : {2, 0}) {
    Loader loader(std::make_shared<ReadByTwo>(8), {.global_batch = 8,
                                                   .workers = workers,
                                                   .max_workers = 3,
                                                   .prefetch = 1,
                                                   .order = Order::kSequential});
    const at::Tensor read = *loader.next().microbatches.front().target;
    EXPECT_THAT(std::vector(read.const_data_ptr<std::int64_t>(), read.const_data_ptr<std::int64_t>() + 8),
                testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7))
        << workers;
  }
}

TEST(Loader, OneThreadReadsAheadWithoutWaitingSteps) {
  const auto data = std::make_shared<ReadByTwo>(8);
  Loader loader(
      data, {.global_batch = 8, .workers = 0, .max_workers = 3, .prefetch = 4, .order = Order::kSequential});
  loader.next();
  while (loader.report().counts.samples < 40) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(data->num_readers(), 1U);
}

/// Sample i is the number i, and takes some time.
class Slow : public Dataset {
 public:
  std::int64_t size() const override { return 96; }
  Example get(std::int64_t index) const override {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    return {at::full({1}, static_cast<double>(index)), at::scalar_tensor(index, at::kLong)};
  }
};

TEST(Loader, SeekOrEndLeavesNoSharedRows) {
  const auto slow = std::make_shared<Slow>();
  for (int again = 0; again < 10; ++again) {
    Loader loader(slow, {.global_batch = 24, .workers = 3, .prefetch = 3, .order = Order::kSequential});
    for (const std::uint64_t step : {2, 0, 3, 1}) {
      loader.seek(step);
      const at::Tensor read = *loader.next().microbatches.front().target;
      for (std::int64_t row = 0; row < 24; ++row)
        EXPECT_EQ(read.const_data_ptr<std::int64_t>()[row], static_cast<std::int64_t>(step) * 24 + row);
    }
  }
}

/// A sample is the number of libtorch threads of the reading thread.
class Computed : public Dataset {
 public:
  std::int64_t size() const override { return 8; }
  Example get(std::int64_t index) const override {
    return {at::full({1}, at::get_num_threads()), at::scalar_tensor(index, at::kLong)};
  }
};

TEST(Loader, ReadingThreadComputesAlone) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  {
    Loader loader(std::make_shared<Computed>(), {.global_batch = 4, .workers = 2});
    for (int step = 0; step < 4; ++step) {
      const StepBatch batch = loader.next();
      EXPECT_EQ(batch.microbatches.front().input->sum().item<double>(), 4);
    }
    EXPECT_EQ(at::get_num_threads(), 3);
    std::thread other([] { EXPECT_EQ(at::get_num_threads(), 3); });
    other.join();
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace trireme::data
