#include "trireme/base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/replaced_file.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::size_t count_files(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}

TEST(Files, WrittenContentIsRead) {
  const test::TemporaryFolder folder;
  const std::string content("line\nwith \0 zero", 16);
  write_file_atomic(folder / "a", content);
  EXPECT_EQ(read_file(folder / "a"), content);
}

TEST(Files, FailedWriteLeavesOldFileOnly) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "a", "old");
  const auto fill = [](const FileSink& sink) {
    sink(std::as_bytes(std::span("half", 4)));
    throw DataError("the source went away");
  };
  EXPECT_THROW(write_file_atomic(folder / "a", fill), DataError);
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(count_files(folder.path()), 1u);
}

TEST(Files, ReplacedFileHasNewContentWithoutLinks) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "victim", "old");
  std::filesystem::create_symlink(folder / "victim", folder / "a");
  replace_file(folder / "a", "first");
  replace_file(folder / "a", "second");
  EXPECT_EQ(read_file(folder / "a"), "second");
  EXPECT_EQ(read_file(folder / "victim"), "old");
  EXPECT_EQ(count_files(folder.path()), 2u);
  EXPECT_THROW(replace_file(folder / "none/a", "x"), DataError);
}

TEST(Files, WriteOutOfSpaceNamesPath) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "a", "old");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto ignore_before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100;
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THAT([&] { write_file_atomic(folder / "a", std::string(1000, 'x')); },
              ThrowsMessage<DataError>(HasSubstr((folder / "a").string())));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignore_before);
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(count_files(folder.path()), 1u);
}

TEST(Files, MissingFileIsNamedWithReason) {
  EXPECT_THAT([] { read_file("/nowhere/at-all"); },
              ThrowsMessage<DataError>(HasSubstr("cannot open /nowhere/at-all: No such file")));
}

TEST(Files, FolderInPlaceOfFileIsError) {
  const test::TemporaryFolder folder;
  EXPECT_THROW(read_file(folder.path()), DataError);
}

TEST(Files, MakeFolderNamesObstacle) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "a", "");
  EXPECT_THAT([&] { make_folder(folder / "a" / "b"); },
              ThrowsMessage<DataError>(HasSubstr((folder / "a").string())));
}

}  // namespace
}  // namespace trireme
