#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/data/byte_source.h"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class FileBytes : public testing::Test {
 protected:
  void write(const std::string& content) const { std::ofstream(path_, std::ios::binary) << content; }
  const test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "bytes";
};

TEST_F(FileBytes, ReadsAnyRangeAndNoneBeyondEnd) {
  write("0123456789");
  const auto source = open_file(path_);
  EXPECT_EQ(source->size(), 10);
  EXPECT_EQ(read_text(*source, 0, 10), "0123456789");
  EXPECT_EQ(read_text(*source, 7, 3), "789");
  EXPECT_EQ(read_text(*source, 10, 0), "");
  const auto refused = [&](std::int64_t offset, std::int64_t size) {
    EXPECT_THAT([&] { read_text(*source, offset, size); },
                ThrowsMessage<DataError>(AllOf(HasSubstr(path_.string()), HasSubstr("it has 10"))));
  };
  refused(8, 3);
  refused(11, 0);
  refused(-1, 2);
  refused(0, std::int64_t{1} << 62);
}

TEST_F(FileBytes, TruncatedOrRewrittenFileIsNamed) {
  write("0123456789");
  const auto source = open_file(path_);
  std::filesystem::resize_file(path_, 5);
  EXPECT_THAT([&] { read_text(*source, 0, 3); },
              ThrowsMessage<DataError>(AllOf(HasSubstr(path_.string()), HasSubstr("changed"))));
  write("9876543210");
  std::filesystem::last_write_time(path_,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_THAT([&] { read_text(*source, 0, 3); }, ThrowsMessage<DataError>(HasSubstr("changed")));
  EXPECT_EQ(read_text(*open_file(path_), 0, 3), "987");
}

TEST_F(FileBytes, DeletedFileIsReadAsChanged) {
  write("0123456789");
  const auto source = hold_file(path_);
  EXPECT_EQ(source->version(), open_file(path_)->version());
  std::filesystem::rename(path_, folder_ / "moved");
  EXPECT_EQ(read_text(*source, 7, 3), "789");
  source->check_unchanged();
  std::filesystem::resize_file(folder_ / "moved", 5);
  EXPECT_THAT([&] { source->check_unchanged(); }, ThrowsMessage<DataError>(HasSubstr("changed")));
  EXPECT_THAT([&] { read_text(*source, 3, 4); }, ThrowsMessage<DataError>(HasSubstr("ends at offset 5")));
}

TEST_F(FileBytes, VersionTellsContentsApart) {
  write("0123456789");
  const std::string version = open_file(path_)->version();
  EXPECT_EQ(open_file(path_)->version(), version);
  std::filesystem::last_write_time(path_,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_NE(open_file(path_)->version(), version);
}

TEST_F(FileBytes, ErrorNamesPathThatIsNoFile) {
  EXPECT_THAT([&] { open_file(path_); }, ThrowsMessage<DataError>(HasSubstr(path_.string())));
  EXPECT_THAT([&] { open_file(folder_.path()); }, ThrowsMessage<DataError>(HasSubstr("no regular file")));
}

// A folder of data may be untrusted.
TEST(SecurityFileBytes, RejectsFifoWithoutWaiting) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "0.png").c_str(), 0666), 0);
  EXPECT_THAT([&] { open_file(folder / "0.png"); }, ThrowsMessage<DataError>(HasSubstr("no regular file")));
}

}  // namespace
}  // namespace trireme::data
