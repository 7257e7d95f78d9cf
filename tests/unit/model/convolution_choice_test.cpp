#include "trireme/model/convolution_choice.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::model {
namespace {

ConvolutionShape one_by_one(std::int64_t batch, std::int64_t side) {
  return {.batch = batch,
          .in = 64,
          .out = 256,
          .height = side,
          .width = side,
          .kernel_height = 1,
          .kernel_width = 1};
}

TEST(ConvolutionChoice, LeavesEverythingToAtenUnlessToldOtherwise) {
  for (const std::int64_t batch : {1, 8, 15}) {
    for (const std::int64_t side : {1, 2, 4, 7, 8})
      EXPECT_FALSE(ConvolutionChoice{}.takes_onednn(one_by_one(batch, side)));
  }
}

TEST(ConvolutionChoice, GoesByPlaneBatchAndWhetherChannelsGrow) {
  const ConvolutionChoice choice{.least_batch = {{{1, 8}, {16, 4}, {16, 16}}}};
  EXPECT_FALSE(choice.takes_onednn(one_by_one(7, 2)));
  EXPECT_TRUE(choice.takes_onednn(one_by_one(8, 2)));
  EXPECT_FALSE(choice.takes_onednn(one_by_one(3, 4)));
  EXPECT_TRUE(choice.takes_onednn(one_by_one(4, 4)));
  EXPECT_FALSE(choice.takes_onednn(one_by_one(15, 7)));
  ConvolutionShape narrows = one_by_one(1, 2);
  narrows.out = narrows.in;
  EXPECT_TRUE(choice.takes_onednn(narrows));
}

TEST(ConvolutionChoice, IsAboutPlanesFrom2To63PixelsOnly) {
  EXPECT_FALSE(ConvolutionChoice::onednn().takes_onednn(one_by_one(8, 1)));
  EXPECT_TRUE(ConvolutionChoice::onednn().takes_onednn(one_by_one(8, 7)));
  EXPECT_FALSE(ConvolutionChoice::onednn().takes_onednn(one_by_one(8, 8)));
}

TEST(ConvolutionChoice, LeavesToAtenWhereThatTakesOnednnItself) {
  const auto taken = [](auto change) {
    ConvolutionShape shape = one_by_one(8, 2);
    change(shape);
    return ConvolutionChoice::onednn().takes_onednn(shape);
  };
  EXPECT_TRUE(taken([](ConvolutionShape&) {}));
  EXPECT_FALSE(taken([](ConvolutionShape& shape) { shape.batch = 16; }));
  EXPECT_FALSE(taken([](ConvolutionShape& shape) { shape.threads = 2; }));
  EXPECT_FALSE(taken([](ConvolutionShape& shape) { shape.kernel_width = 3; }));
  EXPECT_FALSE(taken([](ConvolutionShape& shape) { shape.stride = 2; }));
  EXPECT_FALSE(taken([](ConvolutionShape& shape) { shape.groups = 2; }));
}

TEST(ConvolutionChoice, TextIsReadBackAndNothingElseIs) {
  const ConvolutionChoice choice{.least_batch = {{{1, 8}, {16, 4}, {2, 16}}}};
  EXPECT_EQ(convolution_choice_from(to_text(choice)), choice);
  for (const char* wrong :
       {"", "1 8 16 4 2", "1 8 16 4 2 17", "0 8 16 4 2 16", "1 8 16 4 2 16 ", "1 8 x 4 2 16"})
    EXPECT_THROW(convolution_choice_from(wrong), InvalidArgument) << wrong;
}

TEST(ConvolutionChoice, IsSaidInWords) {
  EXPECT_EQ(describe(ConvolutionChoice{}), "ATen's kernels");
  EXPECT_EQ(describe({.least_batch = {{{16, 8}, {16, 16}, {16, 16}}}}),
            "oneDNN for planes of up to 2x2 from 8 samples to more channels; else ATen's kernels");
}

}  // namespace
}  // namespace trireme::model
