// Convolution kernels and layouts of the CPU are rejected on other devices, and not silently ignored.
#include <gmock/gmock.h>

#include "tests/support/stand_in_device.h"
#include "trireme/base/error.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

RunConfig cnn_on(const std::string& device) {
  RunConfig config;
  config.data.name = "synthetic";
  config.model.name = "cnn";
  config.comm.device = device;
  return config;
}

TEST(ConvolutionsOfADevice, AreRejectedUnderCpuNames) {
  RunConfig product = cnn_on(test::kStandInDevice);
  product.train.convolution = "product";
  EXPECT_THAT(
      [&] { resolve_plan(product, 1); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("train.convolution = \"product\" is for the CPU"),
                                           HasSubstr("train.convolution = \"auto\""))));
  RunConfig last = cnn_on(test::kStandInDevice);
  last.train.memory_format = "channels_last";
  EXPECT_THAT(
      [&] { resolve_plan(last, 1); },
      ThrowsMessage<InvalidArgument>(HasSubstr("train.memory_format = \"channels_last\" is for the CPU")));
}

TEST(ConvolutionsOfADevice, AreNativeByDefault) {
  for (const char* kernels : {"auto", "aten"}) {
    RunConfig config = cnn_on(test::kStandInDevice);
    config.train.convolution = kernels;
    EXPECT_EQ(resolve_plan(config, 1).convolutions().kernels, ConvolutionKernels::kAten);
  }
  RunConfig on_the_cpu = cnn_on("cpu");
  on_the_cpu.train.memory_format = "channels_last";
  EXPECT_TRUE(resolve_plan(on_the_cpu, 1).convolutions().channels_last.value());
}

}  // namespace
}  // namespace trireme::train
