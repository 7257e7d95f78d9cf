// No link or name leads a write out of its folder.

#include "trireme/base/open_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/synced_file.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

const auto say_new = [](const FileSink& sink) { sink(std::as_bytes(std::span("new", 3))); };

std::string temporary_of(const std::string& name) { return name + ".part" + std::to_string(::getpid()); }

/// A folder, and a file outside of it that must not change.
class OpenFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(victim_) << "precious";
    fs::create_directory(inside_);
  }
  void TearDown() override { EXPECT_EQ(read_file(victim_), "precious"); }

  test::TemporaryFolder folder_;
  const fs::path victim_ = folder_ / "victim", inside_ = folder_ / "inside";
};

TEST_F(OpenFolderTest, WriteReplacesLinkNotTarget) {
  for (const std::string& name : {std::string("a"), temporary_of("a")})
    fs::create_symlink(victim_, inside_ / name);
  OpenFolder(inside_).write_atomic("a", say_new);
  EXPECT_FALSE(fs::is_symlink(inside_ / "a"));
  EXPECT_EQ(read_file(inside_ / "a"), "new");
  fs::create_symlink(victim_, inside_ / "b");
  OpenFolder(inside_).write_synced("b", say_new);
  EXPECT_FALSE(fs::is_symlink(inside_ / "b"));
  EXPECT_EQ(read_file(inside_ / "b"), "new");
}

TEST_F(OpenFolderTest, WritesByPathDoTheSame) {
  fs::create_symlink(victim_, inside_ / temporary_of("a"));
  fs::create_symlink(victim_, inside_ / "b");
  write_file_atomic(inside_ / "a", "new");
  write_file_synced(inside_ / "b", say_new);
  EXPECT_EQ(read_file(inside_ / "a") + read_file(inside_ / "b"), "newnew");
}

TEST_F(OpenFolderTest, LeavesHardLinkOfTemporaryNameUnwritten) {
  fs::create_hard_link(victim_, inside_ / temporary_of("a"));
  fs::create_hard_link(victim_, inside_ / "b");
  OpenFolder(inside_).write_atomic("a", say_new);
  OpenFolder(inside_).write_synced("b", say_new);
}

TEST_F(OpenFolderTest, LeavesReplacementOfFolderUnwritten) {
  const OpenFolder opened(inside_);
  const fs::path moved = folder_ / "moved", other = folder_ / "other";
  fs::create_directory(other);
  fs::rename(inside_, moved);
  fs::create_directory_symlink(other, inside_);
  opened.write_atomic("a", say_new);
  EXPECT_TRUE(fs::is_empty(other));
  EXPECT_EQ(read_file(moved / "a"), "new");
}

TEST_F(OpenFolderTest, ANameIsOnePathComponent) {
  const OpenFolder opened(inside_);
  const std::string with_zero("a\0b", 3);
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../victim"), std::string("a/b"),
        std::string("/etc/x"), with_zero, std::string(300, 'x')}) {
    EXPECT_FALSE(is_file_name(name));
    EXPECT_THROW(opened.write_atomic(name, say_new), DataError) << name;
    EXPECT_THROW(opened.write_synced(name, say_new), DataError) << name;
    EXPECT_THROW(opened.folder(name), DataError) << name;
  }
  EXPECT_TRUE(is_file_name("0-1-7.part"));
  EXPECT_TRUE(fs::is_empty(inside_));
}

TEST_F(OpenFolderTest, InnerFolderIsNoLinkOrFile) {
  fs::create_directory(folder_ / "real");
  fs::create_directory_symlink(folder_ / "real", inside_ / "link");
  std::ofstream(inside_ / "file") << "x";
  fs::create_directory(inside_ / "folder");
  const OpenFolder opened(inside_);
  EXPECT_THAT([&] { opened.folder("link"); }, ThrowsMessage<DataError>(HasSubstr("is a symbolic link")));
  EXPECT_THAT([&] { opened.folder("file"); }, ThrowsMessage<DataError>(HasSubstr("Not a directory")));
  EXPECT_THAT([&] { opened.folder("none"); }, ThrowsMessage<DataError>(HasSubstr("No such file")));
  opened.folder("folder").write_atomic("a", say_new);
  EXPECT_EQ(read_file(inside_ / "folder/a"), "new");
}

}  // namespace
}  // namespace trireme
