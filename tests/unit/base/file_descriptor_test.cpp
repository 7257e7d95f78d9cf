#include "trireme/base/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace trireme {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

FileDescriptor null_device() { return FileDescriptor(::open("/dev/null", O_WRONLY | O_CLOEXEC)); }

TEST(FileDescriptor, IsClosedWithItsOwner) {
  int fd = -1;
  {
    const FileDescriptor file = null_device();
    fd = file.get();
    EXPECT_TRUE(file.is_open());
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
  EXPECT_FALSE(FileDescriptor().is_open());
}

TEST(FileDescriptor, HasOneOwnerAfterAMove) {
  FileDescriptor first = null_device(), second = null_device();
  const int kept = first.get(), closed = second.get();
  second = std::move(first);
  EXPECT_EQ(second.get(), kept);
  EXPECT_FALSE(first.is_open());  // NOLINT(bugprone-use-after-move): it has none
  EXPECT_FALSE(is_open(closed));
  EXPECT_TRUE(is_open(kept));
  const int released = second.release();
  EXPECT_FALSE(second.is_open());
  EXPECT_TRUE(is_open(released));
  ::close(released);
}

TEST(FileDescriptor, IsClosedOnceAndReportsResult) {
  FileDescriptor file = null_device();
  const int fd = file.get();
  EXPECT_TRUE(file.close());
  EXPECT_FALSE(is_open(fd));
  EXPECT_FALSE(file.is_open());
  EXPECT_FALSE(file.close());
  EXPECT_EQ(errno, EBADF);
}

TEST(FileDescriptor, WritesAllBytesOrSaysWhyNot) {
  EXPECT_TRUE(null_device().write("some bytes"));
  EXPECT_FALSE(FileDescriptor(::open("/dev/full", O_WRONLY | O_CLOEXEC)).write("some bytes"));
  EXPECT_EQ(errno, ENOSPC);
}

}  // namespace
}  // namespace trireme
