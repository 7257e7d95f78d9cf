#include "trireme/data/producer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/data/dataset.h"

namespace trireme::data {
namespace {

using testing::HasSubstr;

const Example kNumber = {at::zeros({2}), at::scalar_tensor(0, at::kLong)};

/// Sample p of epoch e is the number 1000 e + p.
void write_number(Row& row) {
  const auto number = static_cast<std::int64_t>(row.epoch) * 1000 + row.place;
  row.sample.input->fill_(static_cast<double>(number));
  row.sample.target->fill_(number);
}

ProducedOptions numbers(int threads, std::int64_t samples = 10) {
  return {.like = kNumber,
          .samples_per_epoch = samples,
          .keyed = true,
          .threads = threads,
          .produce = [](Producer& producer) {
            while (producer.fill(write_number)) {
            }
          }};
}

std::vector<std::int64_t> numbers_in(const StepBatch& batch) {
  std::vector<std::int64_t> all;
  for (const Example& part : batch.microbatches) {
    for (std::int64_t i = 0; i < part.rows(); ++i) {
      all.push_back((*part.target)[i].item<std::int64_t>());
      EXPECT_EQ((*part.input)[i][1].item<float>(), static_cast<float>(all.back()));
    }
  }
  return all;
}

std::string error_of(BatchStream& stream) {
  try {
    stream.next();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Producer, FillsEveryPlaceOnceForAnyLayout) {
  for (const int world_size : {1, 2, 3}) {
    for (const int num_microbatches : {1, 2}) {
      std::vector<std::unique_ptr<ProducedSamples>> samples;
      std::vector<std::unique_ptr<BatchStream>> ranks;
      for (int rank = 0; rank < world_size; ++rank) {
        samples.push_back(std::make_unique<ProducedSamples>(numbers(rank + 1)));
        ranks.push_back(samples.back()->open({.global_batch = 6,
                                              .num_microbatches = num_microbatches,
                                              .rank = rank,
                                              .world_size = world_size}));
      }
      for (std::int64_t step = 0; step < 6; ++step) {
        std::vector<std::int64_t> joined, expected;
        for (const auto& rank : ranks) {
          const StepBatch batch = rank->next();
          EXPECT_EQ(batch.microbatches.size(), static_cast<std::size_t>(num_microbatches));
          EXPECT_EQ(batch.global_size, step % 2 == 0 ? 6 : 4);
          for (const std::int64_t number : numbers_in(batch)) joined.push_back(number);
        }
        for (std::int64_t place = step % 2 * 6; place < (step % 2 == 0 ? 6 : 10); ++place)
          expected.push_back(step / 2 * 1000 + place);
        EXPECT_EQ(joined, expected) << world_size << " ranks, " << num_microbatches << ", step " << step;
      }
    }
  }
}

TEST(Producer, ProducesNothingForDroppedBatch) {
  std::atomic<std::int64_t> largest = -1;  // largest place that any thread was asked for
  std::vector<std::unique_ptr<ProducedSamples>> samples;
  std::vector<std::unique_ptr<BatchStream>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ProducedOptions options = numbers(2);
    options.produce = [&largest](Producer& producer) {
      const auto next = [&largest](Row& row) {
        for (std::int64_t seen = largest;
             seen < row.place && !largest.compare_exchange_weak(seen, row.place);) {
        }
        write_number(row);
      };
      while (producer.fill(next)) {
      }
    };
    samples.push_back(std::make_unique<ProducedSamples>(options));
    ranks.push_back(samples.back()->open({.global_batch = 4,
                                          .last_batch = LastBatch::kDropped,
                                          .rank = rank,
                                          .world_size = 2,
                                          .balance = Balance::kDynamic}));
  }
  const auto batch = [&] {
    std::vector<std::int64_t> joined;
    for (const auto& rank : ranks)
      for (const std::int64_t number : numbers_in(rank->next())) joined.push_back(number);
    return joined;
  };
  for (std::int64_t step = 0; step < 8; ++step) {  // 10 samples are two batches of 4
    if (step == 2)
      for (const auto& rank : ranks) rank->assign_shares(5, {3, 1});
    const std::int64_t first = step / 2 * 1000 + step % 2 * 4;
    EXPECT_THAT(batch(), testing::ElementsAre(first, first + 1, first + 2, first + 3)) << "step " << step;
  }
  for (const auto& rank : ranks) rank->seek(7 * 2 + 1);
  EXPECT_EQ(batch().front(), 7004);
  EXPECT_EQ(largest, 7);
}

TEST(Producer, DeliversSamplesWithoutPinnedMemory) {
  const ProducedSamples samples(numbers(1));
  const auto stream = samples.open({.global_batch = 5, .pinned = true});
  EXPECT_EQ(numbers_in(stream->next()), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(Producer, FillsEveryPlaceOnceAfterReassignment) {
  std::vector<std::unique_ptr<ProducedSamples>> samples;
  std::vector<std::unique_ptr<BatchStream>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    samples.push_back(std::make_unique<ProducedSamples>(numbers(2)));
    ranks.push_back(samples.back()->open(
        {.global_batch = 6, .rank = rank, .world_size = 2, .prefetch = 3, .balance = Balance::kDynamic}));
  }
  for (std::int64_t step = 0; step < 12; ++step) {
    std::vector<std::int64_t> joined, expected, sizes;
    for (const auto& rank : ranks) {
      // The first change is beyond all produced samples, and the second one is within them.
      if (step == 2) rank->assign_shares(5, {5, 1});
      if (step == 7) rank->assign_shares(8, {2, 4});
      const std::vector<std::int64_t> mine = numbers_in(rank->next());
      joined.insert(joined.end(), mine.begin(), mine.end());
      sizes.push_back(std::ssize(mine));
    }
    for (std::int64_t place = step % 2 * 6; place < (step % 2 == 0 ? 6 : 10); ++place)
      expected.push_back(step / 2 * 1000 + place);
    EXPECT_EQ(joined, expected) << "step " << step;
    const std::int64_t share = step < 5 ? 3 : step < 8 ? 5 : 2;
    EXPECT_EQ(sizes[0], step % 2 == 0 ? share : 2) << "step " << step;
  }
}

TEST(Producer, ContinuesAnywhere) {
  const ProducedSamples samples(numbers(2));
  const auto stream = samples.open({.global_batch = 5});
  EXPECT_EQ(numbers_in(stream->next()).front(), 0);
  for (int again = 0; again < 2; ++again) {
    stream->seek(7 * 2 + 1);
    EXPECT_EQ(numbers_in(stream->next()), (std::vector<std::int64_t>{7005, 7006, 7007, 7008, 7009}));
  }
}

TEST(Producer, IsThrottledBySlowerTrainer) {
  std::atomic<int> made = 0;
  ProducedOptions options = numbers(2, 1000);
  options.produce = [&](Producer& producer) {
    while (producer.fill([&](Row& row) {
      ++made;
      write_number(row);
    })) {
    }
  };
  const ProducedSamples samples(options);
  const auto stream = samples.open({.global_batch = 10, .prefetch = 3});
  for (int step = 0; step < 20; ++step) {
    stream->next();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_LE(made, (step + 1 + 3) * 10);
  }
  EXPECT_GE(made, 200);
}

TEST(Producer, CustomThreadsDeliverSamplesOfAnyRun) {
  const ProducedSamples samples({.like = kNumber, .samples_per_epoch = 8});
  std::atomic<int> times_over = 0, put = 0;
  const auto work = [&] {
    while (samples.producer().put({at::full({2}, 3.0), at::scalar_tensor(3, at::kLong)})) ++put;
    ++times_over;
  };
  std::thread early(work);  // waits for the first run
  {
    const auto stream = samples.open({.global_batch = 4});
    EXPECT_THROW(samples.open({.global_batch = 4}), InvalidArgument);
    EXPECT_EQ(numbers_in(stream->next()), (std::vector<std::int64_t>{3, 3, 3, 3}));
    EXPECT_TRUE(samples.producer().is_wanted());
  }
  early.join();
  EXPECT_FALSE(samples.producer().is_wanted());
  EXPECT_FALSE(samples.producer().put(kNumber));
  const auto stream = samples.open({.global_batch = 4});
  std::thread second(work);
  EXPECT_EQ(numbers_in(stream->next()).size(), 4U);
  samples.producer().close();
  second.join();
  EXPECT_EQ(times_over, 2);
}

TEST(Producer, OwnThreadsServeSeveralRunsAtOnce) {
  const ProducedSamples samples(numbers(2));
  const auto one = samples.open({.global_batch = 5}), two = samples.open({.global_batch = 10});
  EXPECT_EQ(numbers_in(one->next()).back(), 4);
  EXPECT_EQ(numbers_in(two->next()).back(), 9);
  EXPECT_EQ(numbers_in(one->next()).back(), 9);
  EXPECT_THROW(samples.producer(), InvalidArgument);
}

TEST(Producer, ThreadsWithoutRunAreReleased) {
  const ProducedSamples samples({.like = kNumber, .samples_per_epoch = 8});
  std::thread waiting([&] { EXPECT_FALSE(samples.producer().put(kNumber)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  samples.producer().close();
  waiting.join();
}

TEST(Producer, RejectsSamplesThatAreNotAsPromised) {
  const auto error_with = [](const Example& wrong) {
    ProducedOptions options = numbers(1);
    options.name = "pendulum";
    options.produce = [&](Producer& producer) { producer.put(wrong); };
    const ProducedSamples samples(options);
    return error_of(*samples.open({.global_batch = 5}));
  };
  EXPECT_THAT(
      error_with({at::zeros({3}), at::scalar_tensor(0, at::kLong)}),
      HasSubstr("producer 'pendulum' has delivered Float of shape [3], and promised Float of shape [2]"));
  EXPECT_THAT(error_with({at::zeros({2}), at::scalar_tensor(0.5)}), HasSubstr("promised Long"));
  EXPECT_THAT(error_with({{{"force", at::zeros({2})}}, kNumber.target}), HasSubstr("'force'"));
}

TEST(Producer, ExceptionOfThreadEndsRun) {
  ProducedOptions options = numbers(2);
  std::atomic<int> threads = 0;
  options.produce = [&](Producer& producer) {
    if (threads++ == 0) throw std::runtime_error("the joint broke");
    while (producer.fill([](Row&) { throw DataError("no ground"); })) {
    }
  };
  const ProducedSamples samples(options);
  const auto stream = samples.open({.global_batch = 5});
  std::string first;
  for (int again = 0; again < 2; ++again) {
    try {
      stream->next();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      if (again == 0) first = error.what();
      EXPECT_EQ(first, error.what());
    }
  }
  EXPECT_TRUE(first == "the joint broke" || first == "no ground") << first;
}

TEST(Producer, FailedRowIsMadeByAnotherThread) {
  ProducedOptions options = numbers(1);
  int calls = 0;
  options.produce = [&](Producer& producer) {
    for (;;) {
      try {
        if (!producer.fill([&](Row& row) {
              if (calls++ % 3 == 1) throw std::runtime_error("slipped");
              write_number(row);
            }))
          return;
      } catch (const std::runtime_error&) {
      }
    }
  };
  const ProducedSamples samples(options);
  const auto stream = samples.open({.global_batch = 5});
  EXPECT_EQ(numbers_in(stream->next()), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(numbers_in(stream->next()), (std::vector<std::int64_t>{5, 6, 7, 8, 9}));
}

TEST(Producer, NamesProducerThatStopsOrNeverDelivers) {
  ProducedOptions options = numbers(2);
  options.name = "arena";
  options.produce = [](Producer& producer) { producer.fill(write_number); };
  const ProducedSamples stops(options);
  EXPECT_EQ(error_of(*stops.open({.global_batch = 5})),
            "producer 'arena' has delivered 2 of 5 samples of step 1, and all of its threads have returned");
  const ProducedSamples never({.name = "arena", .like = kNumber, .samples_per_epoch = 8});
  const auto stream = never.open({.global_batch = 4, .timeout_s = 0.02});
  never.producer().put(kNumber);
  EXPECT_THAT(error_of(*stream), HasSubstr("has delivered 1 of 4 samples of step 1 within 0.02 s"));
  // It may still arrive.
  for (int i = 0; i < 3; ++i) never.producer().put(kNumber);
  EXPECT_EQ(stream->next().global_size, 4);
}

TEST(Producer, NamesPlaceOfNonNumericSample) {
  ProducedOptions options = numbers(1);
  options.produce = [](Producer& producer) {
    while (producer.fill([](Row& row) {
      write_number(row);
      if (row.place == 7) row.sample.input->fill_(std::nan(""));
    })) {
    }
  };
  const ProducedSamples samples(options);
  const auto stream = samples.open({.global_batch = 5});
  stream->next();
  EXPECT_THAT(error_of(*stream), HasSubstr("sample 7 of the data set holds nan"));
}

TEST(Producer, RejectsIncompleteOptions) {
  EXPECT_THROW(ProducedSamples({.samples_per_epoch = 8}), InvalidArgument);
  EXPECT_THROW(ProducedSamples({.like = kNumber}), InvalidArgument);
  EXPECT_THROW(ProducedSamples({.like = kNumber, .samples_per_epoch = 8, .threads = 1}), InvalidArgument);
  EXPECT_THROW(ProducedSamples({.like = kNumber, .samples_per_epoch = 8, .produce = [](Producer&) {}}),
               InvalidArgument);
  EXPECT_THROW(indexed(std::make_shared<ProducedSamples>(numbers(1))), InvalidArgument);
}

TEST(Producer, CanBeClosedAtAnyTime) {
  for (int steps = 0; steps < 10; ++steps) {
    const ProducedSamples samples(numbers(3));
    const auto stream = samples.open({.global_batch = 4, .num_microbatches = 2});
    for (int i = 0; i < steps; ++i) stream->next();
  }
}

TEST(Producer, StepIsReadyWithItsLastRow) {
  const ProducedSamples samples({.like = kNumber, .samples_per_epoch = 10});
  const auto stream = samples.open({.global_batch = 2});
  for (int step = 0; step < 3; ++step) {
    EXPECT_FALSE(stream->is_ready());
    samples.producer().put(kNumber);
    EXPECT_FALSE(stream->is_ready());
    samples.producer().put(kNumber);
    EXPECT_TRUE(stream->is_ready());
    EXPECT_EQ(stream->next().global_size, 2);
  }
}

}  // namespace
}  // namespace trireme::data
