#include "trireme/train/step/device_prefetcher.h"

#include <ATen/ops/full.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/stand_in_device.h"
#include "trireme/base/error.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// Batch i has two micro-batches, the numbers i and i + 0.5, in pinned memory.
class Numbered : public data::BatchStream {
 public:
  void seek(std::uint64_t step) override { next_ = static_cast<double>(step); }
  data::StepBatch next() override {
    if (next_ == broken) throw DataError("batch " + std::to_string(broken) + " is damaged");
    ++taken;
    data::StepBatch batch{.global_size = 4, .microbatches = {}};
    for (const double number : {next_, next_ + 0.5})
      batch.microbatches.push_back(
          {at::full({2, 3}, number).pin_memory(), at::full({2}, -number).pin_memory()});
    ++next_;
    return batch;
  }
  bool is_ready() const override { return ready; }
  data::LoadingReport report() const override { return {}; }

  int taken = 0;
  double broken = -1;
  bool ready = true;

 private:
  double next_ = 0;
};

class DeviceFeedTest : public testing::Test {
 protected:
  DevicePrefetcher feed(const data::Needed& needed = {}) {
    auto stream = std::make_unique<Numbered>();
    stream_ = stream.get();
    return {std::move(stream), device_, needed};
  }
  double first(const at::Tensor& tensor) const {
    EXPECT_EQ(tensor.device(), device_);
    return tensor.cpu().flatten()[0].item<double>();
  }

  const c10::Device device_ = c10::Device(c10::DeviceType::PrivateUse1, 0);
  Numbered* stream_ = nullptr;
};

TEST_F(DeviceFeedTest, NextBatchIsCopiedDuringComputation) {
  DevicePrefetcher batches = feed();
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(batches.next().global_size, 4);
    EXPECT_EQ(stream_->taken, step + 1);
    EXPECT_EQ((*batches.batch().microbatches[1].input)[0][0].item<double>(), step + 0.5) << "on the host";
    for (const std::size_t m : {0, 1}) {
      const data::Example samples = batches.microbatch(m);
      EXPECT_EQ(first(*samples.input), step + 0.5 * static_cast<double>(m));
      EXPECT_EQ(first(*samples.target), -step - 0.5 * static_cast<double>(m));
    }
    batches.copy_ahead();
    batches.copy_ahead();
    EXPECT_EQ(stream_->taken, step + 2) << "one batch, however often it is asked for";
  }
}

TEST_F(DeviceFeedTest, CopiesMakeNobodyWaitOnTheHost) {
  DevicePrefetcher batches = feed();
  const std::int64_t reads = test::reads_from_stand_in(), blocking = test::copies_from_pageable_memory();
  for (int step = 0; step < 3; ++step) {
    batches.next();
    const at::Tensor sum = *batches.microbatch(0).input + *batches.microbatch(1).input;
    batches.copy_ahead();
  }
  EXPECT_EQ(test::reads_from_stand_in(), reads);
  EXPECT_EQ(test::copies_from_pageable_memory(), blocking);
}

TEST_F(DeviceFeedTest, UnneededSideStaysOnHost) {
  DevicePrefetcher batches = feed({.inputs = true, .targets = false});
  batches.next();
  const data::Example samples = batches.microbatch(0);
  EXPECT_EQ(samples.input->device(), device_);
  EXPECT_TRUE(samples.target->is_cpu());
}

TEST_F(DeviceFeedTest, AwaitsNothingUnread) {
  DevicePrefetcher batches = feed();
  batches.next();
  stream_->ready = false;
  batches.copy_ahead();
  EXPECT_EQ(stream_->taken, 1);
  batches.next();
  EXPECT_EQ(first(*batches.microbatch(0).input), 1);
}

TEST_F(DeviceFeedTest, SeekDropsBatchesCopiedAhead) {
  DevicePrefetcher batches = feed();
  batches.next();
  batches.copy_ahead();
  batches.seek(7);
  batches.next();
  EXPECT_EQ(first(*batches.microbatch(0).input), 7);
}

TEST_F(DeviceFeedTest, ErrorComesWithItsBatch) {
  DevicePrefetcher batches = feed();
  stream_->broken = 1;
  batches.next();
  batches.copy_ahead();
  EXPECT_EQ(first(*batches.microbatch(0).input), 0);
  for (int again = 0; again < 2; ++again)
    EXPECT_THAT([&] { batches.next(); }, ThrowsMessage<DataError>(HasSubstr("is damaged")));
}

TEST_F(DeviceFeedTest, OnTheCpuBatchesPassThrough) {
  auto stream = std::make_unique<Numbered>();
  stream_ = stream.get();
  DevicePrefetcher batches(std::move(stream), c10::kCPU, {});
  const void* memory = batches.next().microbatches[0].input->const_data_ptr();
  EXPECT_EQ(batches.microbatch(0).input->const_data_ptr(), memory);
  batches.copy_ahead();
  EXPECT_EQ(stream_->taken, 1);
}

}  // namespace
}  // namespace trireme::train
