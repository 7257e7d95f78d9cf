// The mock device itself: the host cannot access its memory, its numbers are those of the CPU, and reads are
// counted.
#include "tests/support/stand_in_device.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/conv.h>

#include <cstdio>

namespace trireme::test {
namespace {

c10::Device stand_in(int index = 0) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

at::Tensor numbers() { return at::arange(1000, at::kFloat).sin(); }

TEST(StandInDevice, HasTheNumbersOfTheCpu) {
  const at::Tensor there = numbers().to(stand_in(2));
  EXPECT_EQ(there.device(), stand_in(2));
  EXPECT_TRUE((there * 2 + 1).exp().cpu().equal((numbers() * 2 + 1).exp()));
  EXPECT_TRUE(there.view({10, 100}).t().narrow(0, 3, 4).contiguous().cpu().equal(
      numbers().view({10, 100}).t().narrow(0, 3, 4)));
  EXPECT_EQ(there.sum().item<float>(), numbers().sum().item<float>());
}

TEST(StandInDeviceDeathTest, MemoryIsOutOfReach) {
  const at::Tensor there = numbers().to(stand_in());
  const auto* values = there.const_data_ptr<float>();
  EXPECT_DEATH(std::printf("%f", values[3]), "");  // by a signal, or by the sanitizer that handles it
}

TEST(StandInDevice, ComputesWithItsOwnAlone) {
  EXPECT_THROW(numbers().to(stand_in()) + numbers(), c10::Error);
  EXPECT_THROW(numbers().to(stand_in(0)) + numbers().to(stand_in(1)), c10::Error);
  EXPECT_EQ((numbers().to(stand_in()) + numbers()[7]).device(), stand_in());
}

TEST(StandInDevice, LearnsAsTheCpuDoes) {
  const auto gradient_on = [](c10::Device device) {
    const at::Tensor weight = numbers().narrow(0, 0, 36).view({4, 1, 3, 3}).to(device).requires_grad_();
    const at::Tensor image = numbers().narrow(0, 0, 128).view({2, 1, 8, 8}).to(device);
    const at::Tensor logits = torch::nn::functional::conv2d(image, weight).flatten(2).mean(2);
    at::cross_entropy_loss(logits, at::full({2}, 3, at::kLong).to(device)).backward();
    return weight.grad().cpu();
  };
  const at::Tensor here = gradient_on(c10::kCPU);
  const double difference = (gradient_on(stand_in(1)) - here).abs().max().item<double>();
  EXPECT_LT(difference, 1e-6 * here.abs().max().item<double>());
}

TEST(StandInDevice, CountsReadsToTheHost) {
  const at::Tensor there = numbers().to(stand_in());
  const std::int64_t before = reads_from_stand_in();
  const at::Tensor sum = (there * there).sum();
  EXPECT_EQ(reads_from_stand_in(), before) << "operators read nothing";
  EXPECT_GT(sum.item<float>(), 0);
  EXPECT_TRUE(there.cpu().equal(numbers()));
  EXPECT_EQ(reads_from_stand_in(), before + 2);
}

TEST(StandInDevice, CountsTheBytesThatAreReadBack) {
  const at::Tensor there = numbers().to(stand_in());
  const std::int64_t before = bytes_read_from_stand_in();
  const at::Tensor sum = (there * there).sum();
  EXPECT_EQ(bytes_read_from_stand_in(), before) << "operators read nothing";
  sum.item<float>();
  there.narrow(0, 0, 10).cpu();
  const at::Tensor pinned = at::empty({1000}, at::TensorOptions().pinned_memory(true));
  pinned.copy_(there, /*non_blocking=*/true);
  EXPECT_EQ(bytes_read_from_stand_in() - before, 4 + 4 * 10 + 4 * 1000);
}

TEST(StandInDevice, CopiesThatDoNotBlockAreLate) {
  const at::Tensor there = numbers().to(stand_in());
  const at::Tensor here = at::full({1000}, -7, at::kFloat);
  here.copy_(there, /*non_blocking=*/true);
  EXPECT_TRUE(here.eq(-7).all().item<bool>());
  at::accelerator::synchronizeDevice(0);
  EXPECT_TRUE(here.equal(numbers()));

  const at::Tensor changed = numbers();
  const at::Tensor copied = changed.to(stand_in(), /*non_blocking=*/true);
  changed.fill_(5);
  EXPECT_TRUE(copied.cpu().eq(5).all().item<bool>()) << "the copy was made too early";
}

const c10::impl::VirtualGuardImpl& guard() {
  static const c10::impl::VirtualGuardImpl kGuard(c10::DeviceType::PrivateUse1);
  return kGuard;
}

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(StandInStreams, ReportsReaderThatDoesNotWait) {
  const c10::Stream side = guard().getStreamFromGlobalPool(stand_in());
  at::Tensor there;
  c10::Event written(c10::DeviceType::PrivateUse1);
  {
    const c10::StreamGuard on_side(side);
    there = numbers().to(stand_in()) * 2;
    written.record(side);
  }
  EXPECT_THAT(
      error_of([&] { there.exp(); }),
      testing::AllOf(testing::HasSubstr("aten::exp"), testing::HasSubstr("has written, and does not wait")));
  EXPECT_THAT(error_of([&] { there.add_(1); }), testing::HasSubstr("does not wait"));
  EXPECT_THAT(error_of([&] { there.cpu(); }), testing::HasSubstr("does not wait"));
  written.block(guard().getStream(stand_in()));
  EXPECT_EQ(there.exp().sum().item<float>(), (numbers() * 2).exp().sum().item<float>());
  guard().recordDataPtrOnStream(there.storage().data_ptr(), guard().getStream(stand_in()));
}

TEST(StandInStreams, WriterAwaitsPendingReaders) {
  const c10::Stream side = guard().getStreamFromGlobalPool(stand_in());
  at::Tensor there = numbers().to(stand_in());
  c10::Event made(c10::DeviceType::PrivateUse1), read(c10::DeviceType::PrivateUse1);
  made.record(guard().getStream(stand_in()));
  guard().recordDataPtrOnStream(there.storage().data_ptr(), side);
  {
    const c10::StreamGuard on_side(side);
    made.block(side);
    there.sum();
    read.record(side);
  }
  EXPECT_THAT(error_of([&] { there.zero_(); }), testing::HasSubstr("has read, and does not wait"));
  EXPECT_EQ(there.sum().item<float>(), numbers().sum().item<float>()) << "two may read";
  read.block(guard().getStream(stand_in()));
  there.zero_();
}

TEST(StandInStreams, WaitOfHostOrdersLaterWork) {
  const c10::Stream side = guard().getStreamFromGlobalPool(stand_in());
  at::Tensor there;
  {
    const c10::StreamGuard on_side(side);
    there = numbers().to(stand_in()) * 2;
  }
  guard().synchronizeStream(side);
  EXPECT_EQ(error_of([&] { there.exp(); }), "no error");
  guard().recordDataPtrOnStream(there.storage().data_ptr(), guard().getStream(stand_in()));
}

TEST(StandInStreamsDeathTest, MemoryStaysWhileAnotherStreamUsesIt) {
  EXPECT_DEATH(
      {
        const c10::Stream side = guard().getStreamFromGlobalPool(stand_in());
        at::Tensor there = numbers().to(stand_in());
        c10::Event made(c10::DeviceType::PrivateUse1);
        made.record(guard().getStream(stand_in()));
        const c10::StreamGuard on_side(side);
        made.block(side);
        const at::Tensor sum = there.sum();
        there = at::Tensor();
      },
      "is given back while stream .* may still use it");
}

}  // namespace
}  // namespace trireme::test
