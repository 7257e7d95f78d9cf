#include "trireme/base/bounded_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(SecurityBoundedFile, IsReadUpToItsLimit) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "f") << "12345";
  EXPECT_EQ(read_bounded_file(folder / "f", 5, "list"), "12345");
  EXPECT_THAT(
      [&] { read_bounded_file(folder / "f", 4, "list"); },
      ThrowsMessage<DataError>(AllOf(HasSubstr("/f is not a list"), HasSubstr("5 bytes, and at most 4"))));
  EXPECT_THAT([&] { read_bounded_file(folder / "none", 4, "list"); },
              ThrowsMessage<DataError>(HasSubstr("No such file")));
}

TEST(SecurityBoundedFile, StreamIsReadUpToItsLimit) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "f") << "12345";
  EXPECT_EQ(read_bounded_stream(folder / "f", 5, "list"), "12345");
  EXPECT_EQ(read_bounded_stream("/dev/null", 5, "list"), "");
  for (const std::filesystem::path& path : {folder / "f", std::filesystem::path("/dev/zero")})
    EXPECT_THAT([&] { read_bounded_stream(path, 4, "list"); },
                ThrowsMessage<DataError>(HasSubstr("is not a list: it has more than 4 bytes")));
}

TEST(SecurityBoundedFile, IsARegularFile) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const std::filesystem::path& path :
       {folder / "pipe", std::filesystem::path(folder.path()), std::filesystem::path("/dev/zero")})
    EXPECT_THAT([&] { read_bounded_file(path, 4, "list"); },
                ThrowsMessage<DataError>(HasSubstr("no regular file")));
  EXPECT_THAT([&] { read_bounded_file(folder / "pipe", 4, "list"); },
              ThrowsMessage<DataError>(HasSubstr("it is a FIFO and no regular file")));
}

}  // namespace
}  // namespace trireme
