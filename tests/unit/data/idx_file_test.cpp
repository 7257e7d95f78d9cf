#include "trireme/data/internal/idx_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/memory_limit.h"
#include "tests/unit/data/idx_samples.h"
#include "trireme/base/error.h"
#include "trireme/data/idx_dataset.h"

namespace trireme::data {
namespace {

using test::gzip;
using test::idx_bytes;
using test::TemporaryFolder;
using test::write_bytes;
using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const std::filesystem::path& path, std::size_t num_dims = 3) {
  try {
    read_idx(path, num_dims);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(IdxFile, ReadsPlainAndCompressedFilesAlike) {
  const TemporaryFolder folder;
  const std::string bytes = idx_bytes({2, 1, 3}, "abcdef");
  write_bytes(folder / "plain", bytes);
  write_bytes(folder / "packed.gz", gzip(bytes));
  for (const char* name : {"plain", "packed.gz"}) {
    const IdxFile file = read_idx(folder / name, 3);
    EXPECT_EQ(file.dims, (std::vector<std::int64_t>{2, 1, 3})) << name;
    EXPECT_EQ(std::string(file.values.begin(), file.values.end()), "abcdef") << name;
  }
}

TEST(IdxFile, NamesAMissingFileAndTheReason) {
  EXPECT_THAT(error_of("/nowhere/at-all"), AllOf(HasSubstr("/nowhere/at-all"), HasSubstr("No such file")));
}

TEST(IdxFile, RejectsForeignFileAndShowsItsStart) {
  const TemporaryFolder folder;
  write_bytes(folder / "page.html", "<html>not found</html>");
  EXPECT_THAT(error_of(folder / "page.html"), AllOf(HasSubstr("not an idx file"), HasSubstr("3c 68 74 6d")));
  write_bytes(folder / "empty", "");
  EXPECT_THAT(error_of(folder / "empty"), HasSubstr("not an idx file"));
}

TEST(IdxFile, RejectsLabelsWhereImagesAreExpected) {
  const TemporaryFolder folder;
  write_bytes(folder / "labels", idx_bytes({4}, "abcd"));
  EXPECT_THAT(error_of(folder / "labels"), AllOf(HasSubstr("00 00 08 03"), HasSubstr("found 00 00 08 01")));
}

TEST(IdxFile, EveryTruncationIsAnError) {
  const TemporaryFolder folder;
  const std::string bytes = idx_bytes({2, 1, 3}, "abcdef");
  for (const std::string& whole : {bytes, gzip(bytes)}) {
    for (std::size_t length = 0; length < whole.size(); ++length) {
      write_bytes(folder / "cut", whole.substr(0, length));
      EXPECT_NE(error_of(folder / "cut"), "no error") << "after " << length << " of " << whole.size();
    }
  }
}

TEST(IdxFile, ADamagedCompressedFileIsAnError) {
  const TemporaryFolder folder;
  std::string packed = gzip(idx_bytes({2, 1, 3}, "abcdef"));
  packed[packed.size() - 6] ^= 1;  // in the checksum
  write_bytes(folder / "damaged.gz", packed);
  EXPECT_THAT(error_of(folder / "damaged.gz"), HasSubstr("cannot read"));
}

TEST(IdxFile, BytesAfterTheEndAreAnError) {
  const TemporaryFolder folder;
  write_bytes(folder / "long", idx_bytes({1, 1, 3}, "abcd"));
  EXPECT_THAT(error_of(folder / "long"), HasSubstr("has more bytes after the 3 values"));
}

TEST(IdxFile, AWildHeaderAllocatesNothing) {
  const TemporaryFolder folder;
  write_bytes(folder / "wild", idx_bytes({0xffffffff, 0xffffffff, 0xffffffff}, "abc"));
  EXPECT_THAT(error_of(folder / "wild"), HasSubstr("truncated"));
}

TEST(IdxFile, MemoryFollowsArrivedNotAnnouncedBytes) {
  const TemporaryFolder folder;
  write_bytes(folder / "packed.gz", gzip(idx_bytes({2000000, 28, 28}, "abc")));
  // As many bytes as gzip would need for this number of values, all zero.
  std::filesystem::resize_file(folder / "packed.gz", 2 << 20);
  const test::MemoryLimit limit(std::uint64_t{512} << 20);
  EXPECT_THAT(error_of(folder / "packed.gz"), AllOf(HasSubstr("packed.gz"), HasSubstr("1568000000 values")));
}

class IdxDatasetFiles : public testing::Test {
 protected:
  IdxDataset open(const std::string& images, const std::string& labels) {
    write_bytes(folder_ / "images", images);
    write_bytes(folder_ / "labels", labels);
    return IdxDataset({.images = folder_ / "images",
                       .labels = folder_ / "labels",
                       .normalisation = {.mean = 0.5, .std = 0.25}});
  }
  std::string error_of_open(const std::string& images, const std::string& labels) {
    try {
      open(images, labels);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }
  TemporaryFolder folder_;
};

TEST_F(IdxDatasetFiles, NormalisesPixels) {
  const IdxDataset dataset =
      open(idx_bytes({1, 1, 3}, std::string("\x00\x80\xff", 3)), idx_bytes({1}, "\x07"));
  const Example sample = dataset.get(0);
  EXPECT_EQ(sample.input->sizes(), (std::vector<std::int64_t>{1, 1, 3}));
  EXPECT_FLOAT_EQ((*sample.input)[0][0][0].item<float>(), -2);
  EXPECT_FLOAT_EQ((*sample.input)[0][0][1].item<float>(), (128 / 255.0F - 0.5F) / 0.25F);
  EXPECT_FLOAT_EQ((*sample.input)[0][0][2].item<float>(), 2);
  EXPECT_EQ(sample.target->item<std::int64_t>(), 7);
}

TEST_F(IdxDatasetFiles, BatchHasSamplesInOrderOrNone) {
  const IdxDataset dataset = open(idx_bytes({3, 2, 1}, "abcdef"), idx_bytes({3}, std::string("\0\1\2", 3)));
  const std::vector<std::int64_t> indices = {2, 0, 2};
  const Example batch = dataset.get_batch(indices);
  const Example same = dataset.Dataset::get_batch(indices);
  EXPECT_TRUE(batch.input->equal(same.input));
  EXPECT_TRUE(batch.target->equal(same.target));
  EXPECT_EQ((*batch.target)[1].item<std::int64_t>(), 0);
  EXPECT_TRUE((*batch.input)[1].equal(dataset.get(0).input));
  EXPECT_EQ(dataset.get_batch({}).input->sizes(), (std::vector<std::int64_t>{0, 1, 2, 1}));
  EXPECT_EQ(dataset.Dataset::get_batch({}).input->sizes(), (std::vector<std::int64_t>{0, 1, 2, 1}));
}

TEST_F(IdxDatasetFiles, InvalidLabelNamesFileSampleAndValue) {
  EXPECT_THAT(error_of_open(idx_bytes({2, 1, 1}, "ab"), idx_bytes({2}, "\x09\x0a")),
              AllOf(HasSubstr("labels"), HasSubstr("sample 1 is 10"), HasSubstr("0 to 9")));
}

TEST_F(IdxDatasetFiles, CountsThatDifferAreNamed) {
  EXPECT_THAT(error_of_open(idx_bytes({2, 1, 1}, "ab"), idx_bytes({1}, "\x01")),
              AllOf(HasSubstr("2 images"), HasSubstr("1 labels")));
}

TEST_F(IdxDatasetFiles, AnEmptySetIsAnError) {
  EXPECT_THAT(error_of_open(idx_bytes({0, 1, 1}, ""), idx_bytes({0}, "")), HasSubstr("no images"));
}

}  // namespace
}  // namespace trireme::data
