#include "trireme/base/scratch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/support/scratch_files.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

ScratchFile::Options in(const std::filesystem::path& folder, std::uint64_t bytes) {
  return {.folder = folder, .owner = "rank 2", .purpose = "some state", .bytes = bytes};
}

std::vector<std::byte> filled(std::size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

TEST(ScratchFile, BeginsAsZerosAndKeepsWrites) {
  const test::TemporaryFolder folder;
  ScratchFile file(in(folder.path(), 10000));
  std::vector<std::byte> found = filled(10000, 1);
  file.read(0, found);
  EXPECT_EQ(found, filled(10000, 0));
  file.write(5000, filled(100, 7));
  file.read(4999, std::span(found).first(102));
  EXPECT_EQ(found[0], std::byte{0});
  EXPECT_EQ(std::count(found.begin() + 1, found.begin() + 101, std::byte{7}), 100);
  EXPECT_EQ(found[101], std::byte{0});
}

TEST(ScratchFile, LeavesNoNameAndNoFolderAfter) {
  const test::TemporaryFolder folder;
  const ScratchFile file(in(folder / "a" / "b", 10));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ScratchFile, LeavesAFolderThatWasThere) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  { const ScratchFile file(in(folder / "a", 10)); }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "a"));
  EXPECT_TRUE(std::filesystem::exists(folder / "a"));
}

TEST(ScratchFile, WorksOnWhenItsFolderIsGone) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  ScratchFile file(in(folder / "a", 100));
  std::filesystem::remove_all(folder / "a");
  file.write(0, filled(100, 3));
  std::vector<std::byte> found(100);
  file.read(0, found);
  EXPECT_EQ(found, filled(100, 3));
  file.reserve(200);
  file.write(100, filled(100, 3));
}

TEST(ScratchFile, GivesItsSpaceBack) {
  const test::TemporaryFolder folder;
  const auto open_now = [] { return test::scratch_files_of(::getpid()).size(); };
  {
    const ScratchFile file(in(folder.path(), 100));
    EXPECT_EQ(open_now(), 1u);
  }
  EXPECT_EQ(open_now(), 0u);
}

TEST(ScratchFile, RejectsExcessSizeWithBothNumbers) {
  const test::TemporaryFolder folder;
  const test::FileSizeLimit limit(5000);
  EXPECT_THAT(
      [&] { const ScratchFile file(in(folder.path(), 6000)); },
      ThrowsMessage<DataError>(AllOf(HasSubstr("rank 2: cannot reserve 6000 bytes"), HasSubstr(" are free"),
                                     HasSubstr("of some state in a file of " + folder.path().string()))));
  EXPECT_TRUE(test::scratch_files_of(::getpid()).empty());
  ScratchFile file(in(folder.path(), 4000));
  EXPECT_THROW(file.reserve(6000), DataError);
  EXPECT_EQ(file.bytes(), 4000u);
  file.reserve(5000);
}

TEST(ScratchFile, RanksShareAFolderThatIsMissing) {
  const test::TemporaryFolder folder;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 8; ++rank)
    ranks.emplace_back([&] {
      for (int i = 0; i < 500; ++i) EXPECT_NO_THROW(ScratchFile(in(folder / "a" / "b", 10)));
    });
}

TEST(ScratchFile, AFolderThatCannotExistIsNamed) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "a", "a file");
  EXPECT_THAT([&] { const ScratchFile file(in(folder / "a" / "b", 10)); },
              ThrowsMessage<DataError>(
                  AllOf(HasSubstr("rank 2: cannot create the storage of some state in a file of"),
                        HasSubstr((folder / "a" / "b").string()))));
}

TEST(ScratchFile, FailedWriteNamesOperationAndPlace) {
  const test::TemporaryFolder folder;
  ScratchFile file(in(folder.path(), 4000));
  {
    const test::FileSizeLimit limit(2000);
    EXPECT_THAT(
        [&] { file.write(1500, filled(1000, 1)); },
        ThrowsMessage<DataError>(AllOf(HasSubstr("rank 2: cannot write 1000 bytes at 1500 of some state"),
                                       HasSubstr(folder.path().string()), HasSubstr("File too large"))));
  }
  file.write(1500, filled(1000, 1));
}

TEST(ScratchFile, FailedReadNamesOperationAndPlace) {
  const test::TemporaryFolder folder;
  const ScratchFile file(in(folder.path(), 4000));
  ASSERT_EQ(::truncate(test::scratch_files_of(::getpid()).at(0).c_str(), 2000), 0);
  std::vector<std::byte> found(1000);
  EXPECT_THAT(
      [&] { file.read(1500, found); },
      ThrowsMessage<DataError>(AllOf(HasSubstr("rank 2: cannot read 1000 bytes at 1500 of some state"),
                                     HasSubstr("shorter than it was made"))));
}

}  // namespace
}  // namespace trireme
