// Packed data: reading gives what was packed.

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>

#include "tests/support/image_files.h"
#include "tests/unit/data/packed_samples.h"
#include "trireme/base/files.h"
#include "trireme/data/collate.h"
#include "trireme/data/record_dataset.h"

namespace trireme::data {
namespace {

using test::expect_same_samples;
using test::message_of;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class Packed : public testing::Test {
 protected:
  DataOptions idx(std::uint32_t train = 23, std::uint32_t held_out = 5) const {
    const fs::path folder = folder_ / "idx";
    fs::create_directories(folder);
    test::write_idx_files(folder, train, held_out);
    return {.name = "fashion_mnist", .path = folder.string()};
  }
  PackOptions into(std::uint64_t shard_bytes = 1 << 20) const {
    return {.folder = packed_, .shard_bytes = shard_bytes};
  }
  DataOptions opening() const { return {.name = "packed", .path = packed_.string()}; }

  TemporaryFolder folder_;
  fs::path packed_ = folder_ / "packed";
};

TEST_F(Packed, ImagesHaveSameBitsInAnyShards) {
  const DataOptions options = idx();
  const DataSource source = open_data(options);
  for (const std::uint64_t shard_bytes : {1, 100, 200, 1 << 20}) {
    fs::remove_all(packed_);
    const PackedSize size = pack(packable(options), into(shard_bytes));
    EXPECT_EQ(size.samples, 28);
    EXPECT_EQ(size.shards, shard_bytes < 200 ? 28u : shard_bytes == 200 ? 10u : 2u);
    const DataSource packed = open_data(opening());
    expect_same_samples(*indexed(packed.train), *indexed(source.train));
    expect_same_samples(*packed.test, *source.test);
    EXPECT_EQ(packed.input_shape, source.input_shape);
    EXPECT_EQ(packed.num_classes, 10);
    EXPECT_EQ(packed.held_out, "test");
  }
}

TEST_F(Packed, NoShardIsLargerThanAsked) {
  pack(packable(idx(200, 3)), into(1000));
  for (const std::string& name : names_in(packed_)) {
    if (name.ends_with(".trr")) {
      EXPECT_LE(fs::file_size(packed_ / name), 1000u) << name;
    }
  }
}

TEST_F(Packed, ShardsMatchThoseOfShardOrders) {
  pack(packable(idx(9, 2)), into(200));
  const DataSource packed = open_data(opening());
  EXPECT_THAT(indexed(packed.train)->shard_ends(), testing::ElementsAre(3, 6, 9));
  EXPECT_THAT(packed.test->shard_ends(), testing::ElementsAre(2));
}

TEST_F(Packed, AugmentationsAreMadeWhenItIsRead) {
  DataOptions options = idx();
  options.augment = {"crop", "flip"};
  options.crop_padding = 2;
  pack(packable(options), into());
  DataOptions packed = opening();
  packed.augment = options.augment;
  packed.crop_padding = 2;
  const DataSource source = open_data(options, 7), again = open_data(packed, 7);
  expect_same_samples(*indexed(again.train)->in_epoch(3), *indexed(source.train)->in_epoch(3));
  expect_same_samples(*again.test, *source.test);
}

/// Two named inputs, one of variable length, and no target.
class OwnSamples : public Dataset {
 public:
  std::int64_t size() const override { return 9; }
  Example get(std::int64_t index) const override {
    return {{{"tokens", at::arange(index == 4 ? 0 : 3 + index / 6, at::kInt)},
             {"weight", at::full({2, 1}, static_cast<double>(index), at::kDouble)},
             {"kept", at::scalar_tensor(index % 2 == 0, at::kBool)}},
            {}};
  }
};

TEST_F(Packed, SamplesOfDatasetMayDifferInSize) {
  const auto own = std::make_shared<const OwnSamples>();
  pack({.source = {.name = "own", .train = own, .test = nullptr}}, into(300));
  const DataSource packed = open_data(opening());
  EXPECT_EQ(packed.test, nullptr);
  for (std::int64_t i = 0; i < own->size(); ++i)
    test::expect_same_bits(indexed(packed.train)->get(i).input, own->get(i).input);
  expect_same_samples(*padded(indexed(packed.train), {{.field = "tokens"}}),
                      *padded(own, {{.field = "tokens"}}));
  const std::vector<std::int64_t> indices = {0, 8};
  EXPECT_THAT(message_of([&] { indexed(packed.train)->get_batch(indices); }),
              HasSubstr("padded to one size"));
}

class Images : public Packed {
 protected:
  Images() {
    for (int i = 0; i < 12; ++i) {
      const auto picture = test::gradient(20 + i, 30 - i);
      const fs::path folder = images_ / (i % 3 == 0 ? "cats" : "dogs");
      fs::create_directories(folder);
      const std::string name = "image" + std::to_string(100 + i);
      if (i % 2 == 0) {
        test::write_image(folder / (name + ".png"), test::png_bytes(picture));
      } else {
        test::write_image(folder / (name + ".jpg"), test::jpeg_bytes(picture));
      }
    }
  }
  DataOptions options() const { return {.name = "image_folder", .path = images_.string(), .image_size = 16}; }
  DataOptions reading() const { return {.name = "packed", .path = packed_.string(), .image_size = 16}; }

  const fs::path images_ = folder_ / "images";
};

TEST_F(Images, StayFilesAndBecomeTheSamePixels) {
  pack(packable(options()), into());
  DataOptions augmented = options(), packed_augmented = reading();
  augmented.augment = packed_augmented.augment = {"resized_crop", "flip"};
  const DataSource source = open_data(augmented, 5), packed = open_data(packed_augmented, 5);
  expect_same_samples(*indexed(packed.train), *indexed(source.train));
  expect_same_samples(*indexed(packed.train)->in_epoch(2), *indexed(source.train)->in_epoch(2));
  expect_same_samples(*packed.test, *source.test);
  EXPECT_EQ(packed.num_classes, 2);
  EXPECT_EQ(packed.held_out, "validation");
}

TEST_F(Images, UndecodableImageIsFoundDuringPacking) {
  write_file_atomic(images_ / "dogs" / "image101.jpg", "no image at all");
  EXPECT_THAT(message_of([&] { pack(packable(options()), into()); }), HasSubstr("image101.jpg"));
  EXPECT_FALSE(fs::exists(packed_));
  DataOptions skipping = options();
  skipping.undecodable = "skip";
  pack(packable(skipping, Log("test", LogLevel::kError)), into());
  expect_same_samples(*indexed(open_data(reading()).train),
                      *indexed(open_data(skipping, 0, Log("test", LogLevel::kError)).train));
}

TEST_F(Packed, RejectsSamplesThatVaryPerEpoch) {
  DataOptions options = idx();
  options.augment = {"flip"};
  EXPECT_THAT(message_of<InvalidArgument>([&] { pack({.source = open_data(options)}, into()); }),
              HasSubstr("vary from epoch to epoch"));
  EXPECT_FALSE(fs::exists(packed_));
}

}  // namespace
}  // namespace trireme::data
