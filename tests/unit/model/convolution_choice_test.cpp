#include "trireme/model/convolution_choice.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::model {
namespace {

const ConvolutionShape kWidening{.in = 64, .out = 256, .height = 16, .width = 12};
const ConvolutionShape kStrided{
    .in = 3, .out = 64, .height = 32, .width = 32, .kernel = {7, 5}, .stride = {2, 1}, .padding = {3, 2}};
constexpr PassKernels kMixed{ConvolutionKernel::kProduct, ConvolutionKernel::kOnednn,
                             ConvolutionKernel::kAten};

TEST(ConvolutionChoice, LeavesEverythingToAtenUnlessToldOtherwise) {
  EXPECT_EQ(ConvolutionChoice{}.of(kWidening), PassKernels{});
  EXPECT_TRUE(ConvolutionChoice{}.is_atens());
  EXPECT_TRUE((ConvolutionChoice{.kernels = {{kWidening, {}}}}.is_atens()));
  EXPECT_FALSE((ConvolutionChoice{.kernels = {{kWidening, kMixed}}}.is_atens()));
  EXPECT_FALSE(ConvolutionChoice{.channels_last = true}.is_atens());
  EXPECT_FALSE(ConvolutionChoice::onednn().is_atens());
}

TEST(ConvolutionChoice, PrefersShapeOverDefault) {
  const ConvolutionChoice choice{.otherwise = PassKernels::all(ConvolutionKernel::kOnednn),
                                 .kernels = {{kWidening, kMixed}}};
  EXPECT_EQ(choice.of(kWidening), kMixed);
  EXPECT_EQ(choice.of(kStrided), PassKernels::all(ConvolutionKernel::kOnednn));
}

TEST(ConvolutionChoice, TextOfShapeRoundTripsExclusively) {
  EXPECT_EQ(to_text(kStrided), "3>64@32x32k7x5s2x1p3x2");
  EXPECT_EQ(convolution_shape_from(to_text(kStrided)), kStrided);
  for (const char* wrong : {"", "3>64", "3>64@32x32k7x5s2x1p3x2 ", "3>64@32x32k7x5s2x1p3",
                            "x>64@32x32k7x5s2x1p3x2", "3>64@32x32k7x5s2x1p3x99999999999999999999"})
    EXPECT_THROW(convolution_shape_from(wrong), InvalidArgument) << wrong;
}

TEST(ConvolutionChoice, TextRoundTripsExclusively) {
  const ConvolutionChoice choice{
      .channels_last = true, .otherwise = kMixed, .kernels = {{kWidening, {}}, {kStrided, kMixed}}};
  EXPECT_EQ(to_text(choice), "nhwc poa 3>64@32x32k7x5s2x1p3x2:poa 64>256@16x12k1x1s1x1p0x0:aaa");
  EXPECT_EQ(convolution_choice_from(to_text(choice)), choice);
  EXPECT_EQ(convolution_choice_from("nchw aaa"), ConvolutionChoice{});
  for (const char* wrong : {"", "nhwc", "nhcw aaa", "nchw aa", "nchw aax", "nchw aaa ", "nchw  aaa",
                            "nchw aaa 64>256@16x12k1x1s1x1p0x0", "nchw aaa 64>256@16x12:aaa"})
    EXPECT_THROW(convolution_choice_from(wrong), InvalidArgument) << wrong;
}

TEST(ConvolutionChoice, TextsAboutSameShapesHaveEqualLength) {
  const ConvolutionChoice one{.kernels = {{kWidening, {}}, {kStrided, kMixed}}};
  const ConvolutionChoice other{.channels_last = true, .kernels = {{kWidening, kMixed}, {kStrided, {}}}};
  EXPECT_EQ(to_text(one).size(), to_text(other).size());
}

TEST(ConvolutionChoice, IsSaidInWords) {
  EXPECT_EQ(describe(ConvolutionChoice{}), "ATen's kernels");
  EXPECT_EQ(describe({.channels_last = true, .kernels = {{kWidening, kMixed}, {kStrided, {}}}}),
            "channels_last; of 6 passes 1 as one product, 1 by oneDNN, 4 by ATen");
}

}  // namespace
}  // namespace trireme::model
