// The digest of a data set changes with its size and content. It does not depend on the location or the time
// of files.

#include "trireme/data/content_digest.h"

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>

#include "tests/support/image_files.h"
#include "tests/unit/data/packed_samples.h"
#include "tests/unit/data/tar_files.h"
#include "trireme/data/pack.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

/// Writes a data set with this number of samples, one of which differs if `other`. Returns the options that
/// open it.
struct DigestedSource {
  const char* name;
  DataOptions (*write)(const fs::path& folder, int samples, bool other);
};
std::ostream& operator<<(std::ostream& out, const DigestedSource& source) { return out << source.name; }

DataOptions write_csv(const fs::path& folder, int samples, bool other) {
  std::string rows = "x,y,class\n";
  for (int i = 0; i < samples; ++i) rows += text(i, ",0.", i == 3 && other ? 7 : 5, ",", i % 2, "\n");
  test::write_bytes(folder / "data.csv", rows);
  return {.name = "csv", .path = (folder / "data.csv").string()};
}

std::string npy_of(const std::string& type, const std::string& shape, const std::string& values) {
  std::string dict = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  dict.resize(118, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dict + values;
}

DataOptions write_numpy(const fs::path& folder, int samples, bool other) {
  std::string values(static_cast<std::size_t>(samples) * 4, '\0'),
      classes(static_cast<std::size_t>(samples) * 8, '\0');
  if (other) values[12] = 1;
  test::write_bytes(folder / "x.npy", npy_of("<f4", text("(", samples, ", 1)"), values));
  test::write_bytes(folder / "y.npy", npy_of("<i8", text("(", samples, ",)"), classes));
  return {.name = "numpy", .path = folder.string()};
}

DataOptions write_text(const fs::path& folder, int samples, bool other) {
  std::string content;
  for (int i = 0; i < 10 * samples; ++i) content += static_cast<char>('a' + i % 20);
  if (other) content[5] = 'a';
  test::write_bytes(folder / "t.txt", content);
  return {.name = "text", .path = (folder / "t.txt").string(), .block = 4};
}

DataOptions write_images(const fs::path& folder, int samples, bool other) {
  for (int i = 0; i < samples; ++i) {
    fs::create_directories(folder / text("class", i % 2));
    test::write_image(folder / text("class", i % 2) / text(i == 3 && other ? "other" : "image", i, ".png"),
                      test::png_bytes(test::gradient(4, 4)));
  }
  return {.name = "image_folder", .path = folder.string(), .image_size = 4};
}

DataOptions write_tars(const fs::path& folder, int samples, bool other) {
  std::string members;
  for (int i = 0; i < samples; ++i) {
    members += test::tar_member(text("sample", i, ".png"),
                                test::png_bytes(test::gradient(4, i == 3 && other ? 5 : 4)));
    members += test::tar_member(text("sample", i, ".cls"), text(i % 2));
  }
  test::write_tar(folder / "train-0.tar", members);
  return {.name = "webdataset", .path = (folder / "train-0.tar").string(), .image_size = 4};
}

DataOptions write_idx(const fs::path& folder, int samples, bool other) {
  test::write_idx_files(folder, static_cast<std::uint32_t>(samples), 4);
  if (other) test::flip_byte(folder / "train-images-idx3-ubyte", 16 + 3 * 20);
  return {.name = "mnist", .path = folder.string()};
}

DataOptions write_packed(const fs::path& folder, int samples, bool other) {
  const fs::path from = folder / "from", to = folder / "packed";
  fs::create_directories(from);
  pack(packable(write_csv(from, samples, other)), {.folder = to});
  return {.name = "packed", .path = to.string()};
}

class DigestOf : public testing::TestWithParam<DigestedSource> {
 protected:
  DataSource written(const std::string& name, int samples, bool other) const {
    fs::create_directories(folder_ / name);
    return open_data(GetParam().write(folder_ / name, samples, other));
  }
  const test::TemporaryFolder folder_;
};

TEST_P(DigestOf, DistinguishesGrownAndChangedDataFromCopy) {
  const DataSource first = written("first", 40, false);
  EXPECT_THAT(first.train_digest, testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_THAT(first.test_digest, testing::MatchesRegex("[0-9a-f]{16}"));
  const DataSource copy = written("copy", 40, false);
  EXPECT_EQ(copy.train_digest, first.train_digest);
  EXPECT_EQ(copy.test_digest, first.test_digest);
  EXPECT_NE(written("grown", 41, false).train_digest, first.train_digest);
  EXPECT_NE(written("changed", 40, true).train_digest, first.train_digest);
}

INSTANTIATE_TEST_SUITE_P(
    Table, DigestOf,
    testing::Values(DigestedSource{"csv", write_csv}, DigestedSource{"numpy", write_numpy},
                    DigestedSource{"text", write_text}, DigestedSource{"image_folder", write_images},
                    DigestedSource{"webdataset", write_tars}, DigestedSource{"mnist", write_idx},
                    DigestedSource{"packed", write_packed}),
    testing::PrintToStringParamName());

TEST(ContentDigest, LargeFileIsSampledThroughout) {
  const test::TemporaryFolder folder;
  std::string bytes(20 << 20, 'a');
  const auto digest = [&] {
    test::write_bytes(folder / "f", bytes);
    return ContentDigest().add(*open_file(folder / "f")).text();
  };
  const std::string before = digest();
  EXPECT_EQ(digest(), before);
  for (const std::size_t at : {std::size_t{0}, bytes.size() - 1}) {
    bytes[at] = 'b';
    EXPECT_NE(digest(), before) << at;
    bytes[at] = 'a';
  }
  bytes += 'a';
  EXPECT_NE(digest(), before);
}

}  // namespace
}  // namespace trireme::data
