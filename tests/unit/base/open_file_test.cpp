#include "trireme/base/open_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kPrecious = "not to be touched\n";

/// A folder that other users may write to, next to a file that they must not change.
class SecurityOpenFile : public testing::Test {
 protected:
  SecurityOpenFile() {
    fs::create_directories(folder_);
    write_file_atomic(victim_, kPrecious);
  }
  void plant(const std::string& name) const { fs::create_symlink(victim_, folder_ / name); }
  void expect_untouched() const {
    EXPECT_FALSE(fs::is_symlink(victim_));
    EXPECT_EQ(read_file(victim_), kPrecious);
  }

  const test::TemporaryFolder all_;
  const fs::path folder_ = all_ / "folder", victim_ = all_ / "victim";
};

TEST_F(SecurityOpenFile, NoOpeningFollowsALink) {
  plant("link");
  fs::create_symlink(all_ / "nowhere", folder_ / "dangling");
  for (const int flags : {O_RDONLY, O_WRONLY | O_CREAT | O_APPEND, O_RDWR | O_CREAT, O_WRONLY | O_TRUNC}) {
    for (const char* name : {"link", "dangling"}) {
      const FileDescriptor file = open_file(folder_ / name, flags);
      const int problem = errno;
      EXPECT_FALSE(file.is_open()) << name << ", flags " << flags;
      EXPECT_EQ(problem, ELOOP);
      EXPECT_THAT(problem_of_open(problem), HasSubstr("symbolic link"));
    }
  }
  EXPECT_FALSE(fs::exists(all_ / "nowhere"));
  expect_untouched();
}

TEST_F(SecurityOpenFile, NewFileReplacesLinkNotTarget) {
  plant("link");
  const FileDescriptor file = create_file(folder_ / "link");
  ASSERT_TRUE(file.is_open());
  EXPECT_TRUE(file.write("new"));
  EXPECT_FALSE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "link"), "new");
  expect_untouched();
}

TEST_F(SecurityOpenFile, RejectsFifoWithoutWaiting) {
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0666), 0);
  for (const int flags : {O_RDONLY, O_WRONLY | O_CREAT | O_APPEND, O_RDWR | O_CREAT}) {
    const FileDescriptor file = open_file(folder_ / "fifo", flags);
    const int problem = errno;
    EXPECT_FALSE(file.is_open());
    EXPECT_EQ(problem, ENXIO);
    EXPECT_THAT(problem_of_open(problem), HasSubstr("FIFO"));
  }
}

TEST_F(SecurityOpenFile, RejectsFifoAndReadsShellPipe) {
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0666), 0);
  plant("link");
  EXPECT_THAT([&] { read_file(folder_ / "fifo"); },
              testing::ThrowsMessage<DataError>(HasSubstr("it is a FIFO or a socket")));
  EXPECT_EQ(read_file(folder_ / "link"), kPrecious) << "reading follows links";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(::write(ends[1], "later", 5), 5);
    ::close(ends[1]);
  });
  EXPECT_EQ(read_file("/dev/fd/" + std::to_string(ends[0])), "later");
  writer.join();
  ::close(ends[0]);
}

TEST_F(SecurityOpenFile, KeepsModeRequestedForFile) {
  const FileDescriptor file = open_file(folder_ / "file", O_WRONLY | O_CREAT | O_APPEND, 0640);
  ASSERT_TRUE(file.is_open());
  EXPECT_EQ(::fcntl(file.get(), F_GETFL) & (O_APPEND | O_NONBLOCK), O_APPEND);
  struct stat info {};
  ASSERT_EQ(::fstat(file.get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0137, 0U);
  EXPECT_TRUE(open_file("/dev/full", O_WRONLY).is_open()) << "only root makes devices";
}

TEST_F(SecurityOpenFile, TheFolderItselfMayBeALink) {
  fs::create_directory_symlink(folder_, all_ / "runs");
  const FileDescriptor file = open_file(all_ / "runs" / "file", O_WRONLY | O_CREAT | O_APPEND);
  ASSERT_TRUE(file.is_open());
  EXPECT_TRUE(file.write("1"));
  EXPECT_EQ(read_file(folder_ / "file"), "1");
}

TEST_F(SecurityOpenFile, AMissingFolderIsSaid) {
  EXPECT_FALSE(create_file(all_ / "missing" / "file").is_open());
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(open_file(all_ / "missing" / "file", O_RDWR | O_CREAT).is_open());
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace
}  // namespace trireme
