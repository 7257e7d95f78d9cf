#include "trireme/data/transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <set>

#include "tests/support/memory_limit.h"
#include "trireme/base/error.h"
#include "trireme/data/decorators.h"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Every pixel has another value.
at::Tensor numbered(std::int64_t height, std::int64_t width, std::int64_t channels = 3) {
  return torch::arange(channels * height * width, at::kFloat).reshape({channels, height, width});
}

at::Tensor changed(const std::shared_ptr<const Transform>& transform, const at::Tensor& image,
                   std::uint64_t seed = 0) {
  Random random(seed);
  return transform->apply(image, random);
}

TEST(Transforms, FlipMirrorsAboutHalfOfTheImages) {
  const at::Tensor image = numbered(3, 4);
  int flipped = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const at::Tensor result = changed(random_flip(), image, seed);
    if (result.equal(image)) continue;
    EXPECT_TRUE(result.equal(image.flip({2})));
    ++flipped;
  }
  EXPECT_GT(flipped, 70);
  EXPECT_LT(flipped, 130);
}

TEST(Transforms, CropIsPartOfFramedImage) {
  const at::Tensor image = numbered(5, 4);
  const at::Tensor framed = torch::constant_pad_nd(image, {1, 1, 1, 1}, -1);
  std::set<int> places;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const at::Tensor result = changed(random_crop(1, -1), image, seed);
    for (int top = 0; top < 3; ++top) {
      for (int left = 0; left < 3; ++left) {
        if (result.equal(framed.slice(1, top, top + 5).slice(2, left, left + 4)))
          places.insert(3 * top + left);
      }
    }
  }
  EXPECT_EQ(places.size(), 9) << "every offset of the frame occurs, and nothing else would be counted";
}

TEST(Transforms, ResizeCoversSizeAndTakesMiddle) {
  const at::Tensor wide =
      torch::cat({torch::zeros({3, 8, 4}), torch::ones({3, 8, 8}), torch::zeros({3, 8, 4})}, 2);
  const at::Tensor result = changed(resize_and_crop({4, 4}), wide);
  ASSERT_EQ(result.sizes(), (std::vector<std::int64_t>{3, 4, 4}));
  // The middle 8 of 16 columns are ones. The antialiasing filter reaches one pixel beyond their edge.
  EXPECT_TRUE(result.slice(2, 1, 3).allclose(torch::ones({3, 4, 2})));
  EXPECT_TRUE(changed(resize_and_crop({8, 16}), wide).equal(wide)) << "nothing to do";
}

TEST(Transforms, BytesAreResizedInAnyLayout) {
  const at::Tensor image = torch::randint(0, 256, {3, 37, 53}, at::kByte);
  for (const auto& transform : {resize_and_crop({16, 24}), random_resized_crop({16, 24})}) {
    const at::Tensor exact = changed(transform, image.to(at::kFloat)), found = changed(transform, image);
    EXPECT_EQ(found.scalar_type(), at::kByte);
    EXPECT_LE((found.to(at::kFloat) - exact).abs().max().item<float>(), 1.0F);
    const at::Tensor pixel_by_pixel = image.permute({1, 2, 0}).contiguous().permute({2, 0, 1});
    EXPECT_TRUE(changed(transform, pixel_by_pixel).equal(found));
    const auto normal = normalize({0.5, 0.4, 0.3}, {0.2, 0.25, 0.5});
    EXPECT_TRUE(changed(normal, found).equal(changed(normal, found.contiguous())));
  }
}

TEST(Transforms, LongImageIsResizedInMiddleOnly) {
  const test::MemoryLimit limit(std::uint64_t{512} << 20);
  for (const bool stands : {false, true}) {
    at::Tensor image = torch::zeros({3, 1, 60001});
    // The region that affects a square in the middle, and a margin.
    image.slice(2, 30000 - 100, 30000 + 101).fill_(1);
    image.slice(2, 30000, 30001).fill_(3);
    if (stands) image = image.transpose(1, 2).contiguous();
    for (const auto& transform : {resize_and_crop({64, 64}), random_resized_crop({64, 64})}) {
      const at::Tensor result = changed(transform, image);
      ASSERT_EQ(result.sizes(), (std::vector<std::int64_t>{3, 64, 64}));
      EXPECT_NEAR(result[0][32][32].item<float>(), 3, 0.1) << "the pixel in the middle";
    }
  }
}

TEST(Transforms, LongImageMatchesFullyResizedImage) {
  const at::Tensor image = torch::rand({3, 3, 900});
  const at::Tensor whole = at::_upsample_bilinear2d_aa(image.unsqueeze(0), {12, 3600}, false).squeeze(0);
  EXPECT_TRUE(changed(resize_and_crop({12, 12}), image)
                  .allclose(whole.slice(2, 1794, 1806), /*rtol=*/1e-4, /*atol=*/1e-4));
}

TEST(Transforms, RejectsFrameBeyondImageWithLimit) {
  for (const std::int64_t padding : {29L, 100000L, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_THAT(
        [&] {
          make_augmentations({"crop"}, {.size = {28, 20}, .crop_padding = padding});
        },
        testing::ThrowsMessage<InvalidArgument>(
            AllOf(HasSubstr(text("data.crop_padding = ", padding)), HasSubstr("0 to 28"))));
  }
  EXPECT_NO_THROW(make_augmentations({"crop"}, {.size = {28, 20}, .crop_padding = 28}));
  EXPECT_NO_THROW(make_augmentations({"flip"}, {.size = {2, 2}, .crop_padding = 4})) << "none is cropped";
}

TEST(Transforms, ResizedCropHasSizeAndStaysInside) {
  const at::Tensor image = numbered(20, 30) / 1800 + 1;
  std::set<float> seen;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const at::Tensor result = changed(random_resized_crop({6, 6}), image, seed);
    ASSERT_EQ(result.sizes(), (std::vector<std::int64_t>{3, 6, 6}));
    EXPECT_GE(result.min().item<float>(), 1 - 1e-5);
    EXPECT_LE(result.max().item<float>(), 2 + 1e-5);
    seen.insert(result.sum().item<float>());
  }
  EXPECT_GT(seen.size(), 45) << "each draw is another part";
  EXPECT_EQ(changed(random_resized_crop({6, 6}), numbered(1, 400)).size(2), 6)
      << "a shape where no draw fits";
}

TEST(Transforms, NormalizeIsTheTextbookFormulaFromBytes) {
  const at::Tensor image = torch::randint(0, 256, {3, 4, 5}, at::kByte);
  const at::Tensor mean = torch::tensor({0.5, 0.4, 0.3}).reshape({3, 1, 1});
  const at::Tensor std = torch::tensor({0.2, 0.25, 0.5}).reshape({3, 1, 1});
  const at::Tensor result = changed(normalize({0.5, 0.4, 0.3}, {0.2, 0.25, 0.5}), image);
  EXPECT_TRUE(result.allclose((image.to(at::kFloat) / 255 - mean) / std, 1e-5, 1e-5));
  const at::Tensor input = image.to(at::kFloat);
  changed(normalize({0.5, 0.4, 0.3}, {0.2, 0.25, 0.5}), input);
  EXPECT_TRUE(input.equal(image.to(at::kFloat))) << "the image itself is left alone";
  EXPECT_THROW(changed(normalize({0, 0, 0}, {1, 1, 1}), torch::zeros({1, 2, 2})), InvalidArgument);
  EXPECT_THROW(normalize({0, 0, 0}, {1, 0, 1}), InvalidArgument);
}

TEST(Transforms, UnknownAugmentationNamesTheNearest) {
  try {
    make_augmentations({"flip", "crpo"}, {});
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("crpo"), HasSubstr("crop")));
  }
}

class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t first, std::int64_t count) : first_(first), count_(count) {}
  std::int64_t size() const override { return count_; }
  Example get(std::int64_t index) const override {
    return {numbered(6, 6) + static_cast<double>(1000 * (first_ + index)), torch::tensor(first_ + index)};
  }

 private:
  std::int64_t first_, count_;
};

at::Tensor inputs(const Dataset& dataset, std::vector<std::int64_t> indices) {
  return dataset.get_batch(indices).input;
}

TEST(TransformedDataset, SamplesVaryWithEpochAndSeedOnly) {
  const auto numbers = std::make_shared<Numbers>(0, 8);
  const Transforms transforms = {random_crop(2, 0), random_flip()};
  const TransformedDataset first(numbers, transforms, 1), same(numbers, transforms, 1),
      other(numbers, transforms, 2);
  const std::vector<std::int64_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto in_epoch = [&](const Dataset& dataset, std::uint64_t epoch) {
    return inputs(*dataset.in_epoch(epoch), all);
  };
  EXPECT_TRUE(in_epoch(first, 3).equal(in_epoch(same, 3)));
  EXPECT_FALSE(in_epoch(first, 3).equal(in_epoch(first, 4)));
  EXPECT_FALSE(in_epoch(first, 3).equal(in_epoch(other, 3)));
  EXPECT_TRUE(inputs(*first.in_epoch(3), {5, 2}).equal(in_epoch(first, 3).index({torch::tensor({5, 2})})))
      << "a sample does not depend on its batch";
}

TEST(TransformedDataset, PassesEpochToItsSource) {
  const auto cropped =
      std::make_shared<TransformedDataset>(std::make_shared<Numbers>(0, 4), Transforms{random_crop(2, 0)}, 1);
  const TransformedDataset outer(cropped, {}, 1);
  EXPECT_TRUE(inputs(*outer.in_epoch(3), {0, 1}).equal(inputs(*cropped->in_epoch(3), {0, 1})));
}

TEST(SubsetDataset, HasListedSamplesAndVariesWithWhole) {
  const auto numbers = std::make_shared<Numbers>(0, 8);
  const SubsetDataset part(numbers, {6, 1, 3});
  EXPECT_EQ(part.size(), 3);
  EXPECT_EQ(part.get(1).target->item<std::int64_t>(), 1);
  EXPECT_TRUE(inputs(part, {2, 0}).equal(inputs(*numbers, {3, 6})));
  EXPECT_EQ(inputs(part, {}).size(0), 0);
  EXPECT_EQ(part.in_epoch(1), nullptr);
  const auto changed = std::make_shared<TransformedDataset>(numbers, Transforms{random_crop(2, 0)}, 1);
  const SubsetDataset part_of_changed(changed, {6, 1, 3});
  EXPECT_TRUE(
      inputs(*part_of_changed.in_epoch(5), {0, 1, 2}).equal(inputs(*changed->in_epoch(5), {6, 1, 3})));
  EXPECT_THROW(SubsetDataset(numbers, {8}), InvalidArgument);
  EXPECT_THROW(SubsetDataset(numbers, {}), InvalidArgument);
  EXPECT_THROW(part.get(3), InvalidArgument);
}

TEST(ConcatDataset, NumbersItsPartsThrough) {
  const ConcatDataset both({std::make_shared<Numbers>(0, 3), std::make_shared<Numbers>(3, 2)});
  ASSERT_EQ(both.size(), 5);
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(both.get(i).target->item<std::int64_t>(), i);
  EXPECT_EQ(both.in_epoch(1), nullptr);
  EXPECT_THROW(both.get(5), InvalidArgument);
  EXPECT_THROW(both.get(-1), InvalidArgument);
  const auto changed =
      std::make_shared<TransformedDataset>(std::make_shared<Numbers>(3, 2), Transforms{random_crop(2, 0)}, 1);
  const ConcatDataset mixed({std::make_shared<Numbers>(0, 3), changed});
  EXPECT_TRUE(inputs(*mixed.in_epoch(2), {4}).equal(inputs(*changed->in_epoch(2), {1})));
}

}  // namespace
}  // namespace trireme::data
