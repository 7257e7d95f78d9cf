// A node's disk over a folder: safe writes, possible contents of a folder after a crash, and a full disk.

#include "trireme/wire/folder_disk.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::wire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

TEST(FolderDisk, NextProcessReadsAppendedData) {
  const test::TemporaryFolder folder;
  {
    FolderDisk disk(folder / "node");
    disk.append("log", bytes_of("one"));
    disk.append("log", bytes_of("two"));
    disk.sync("log");
    disk.replace("state", bytes_of("first"));
    disk.replace("state", bytes_of("second"));
  }
  FolderDisk disk(folder / "node");
  EXPECT_THAT(disk.names(), ElementsAre("log", "state"));
  EXPECT_EQ(disk.read("log"), bytes_of("onetwo"));
  EXPECT_EQ(disk.read("state"), bytes_of("second"));
  EXPECT_EQ(disk.read("nothing"), std::nullopt);
  disk.append("log", bytes_of("three"));
  EXPECT_EQ(disk.read("log"), bytes_of("onetwothree"));
}

TEST(FolderDisk, ReplacedOrRemovedFileIsReopened) {
  const test::TemporaryFolder folder;
  FolderDisk disk(folder.path());
  disk.append("log", bytes_of("old"));
  disk.replace("log", bytes_of("new"));
  disk.append("log", bytes_of("+"));
  EXPECT_EQ(disk.read("log"), bytes_of("new+"));
  disk.remove("log");
  disk.remove("log");
  EXPECT_EQ(disk.read("log"), std::nullopt);
  disk.append("log", bytes_of("again"));
  EXPECT_EQ(disk.read("log"), bytes_of("again"));
}

TEST(FolderDisk, UnfinishedFilesOfDeadProcessAreRemoved) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "state.part123") << "half";
  FolderDisk disk(folder.path());
  EXPECT_TRUE(disk.names().empty());
}

TEST(FolderDisk, NamesStayInTheFolder) {
  const test::TemporaryFolder folder;
  FolderDisk disk(folder.path());
  for (const std::string name : {"", "../x", "a/b", ".hidden", "x.part1"}) {
    EXPECT_THROW(disk.append(name, bytes_of("x")), InvalidArgument) << name;
    EXPECT_THROW(disk.read(name), InvalidArgument) << name;
  }
}

TEST(FolderDisk, NothingIsAppendedThroughASymbolicLink) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "victim") << "precious";
  std::filesystem::create_directory(folder / "node");
  std::filesystem::create_symlink(folder / "victim", folder / "node/log");
  FolderDisk disk(folder / "node");
  EXPECT_THAT([&] { disk.append("log", bytes_of("x")); },
              ThrowsMessage<DataError>(HasSubstr("symbolic link")));
  EXPECT_EQ(read_file(folder / "victim"), "precious");
}

TEST(FolderDisk, TruncatedWriteRequiresFileReplacement) {
  const test::TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    // A file-size limit simulates a full disk: a part of a write succeeds, and the rest fails.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 10, .rlim_max = RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    FolderDisk disk(folder.path());
    disk.append("log", bytes_of("123456"));
    int seen = 0;
    try {
      disk.append("log", bytes_of("7890abcd"));
    } catch (const DataError&) {
      ++seen;
    }
    try {
      disk.append("log", bytes_of("x"));
    } catch (const DataError& error) {
      if (std::string(error.what()).find("replace it") != std::string::npos) ++seen;
    }
    try {
      disk.sync("log");
    } catch (const DataError&) {
      ++seen;
    }
    disk.replace("log", bytes_of("123456"));
    disk.append("log", bytes_of("78"));
    disk.sync("log");
    ::_exit(seen);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_EQ(read_file(folder / "log"), "12345678");
}

TEST(FolderDisk, UncreatableFolderIsNamed) {
  EXPECT_THAT([] { FolderDisk disk("/proc/nothing"); }, ThrowsMessage<DataError>(HasSubstr("/proc/nothing")));
}

}  // namespace
}  // namespace trireme::wire
