#include "trireme/data/internal/tar_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/data/tar_files.h"
#include "trireme/base/error.h"

namespace trireme::data {
namespace {

using test::tar_checked;
using test::tar_end;
using test::tar_header;
using test::tar_member;
using test::tar_pax;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TarMembers : public testing::Test {
 protected:
  std::vector<std::string> list(const std::string& archive) const {
    std::ofstream(path_, std::ios::binary) << archive;
    return list_file();
  }
  /// "NAME=CONTENT"
  std::vector<std::string> list_file() const {
    const auto source = open_file(path_);
    ForwardReader reader(*source);
    std::vector<std::string> found;
    for_each_member(reader, [&](const TarMember& member) {
      found.push_back(member.name + '=' + read_text(*source, member.offset, member.size));
    });
    return found;
  }
  void rejects(const std::string& archive, const std::string& offset, const std::string& why) const {
    EXPECT_THAT([&] { list(archive); },
                ThrowsMessage<DataError>(AllOf(HasSubstr(path_.string() + " at " + offset), HasSubstr(why))));
  }
  const test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "shard.tar";
};

TEST_F(TarMembers, AreFoundInOrderForAllLengths) {
  const std::string block(512, 'b'), more(513, 'm');
  EXPECT_THAT(list(tar_member("a.txt", "1") + tar_member("empty.txt", "") + tar_member("block", block) +
                   tar_member("folder/", "", '5') + tar_member("folder/more", more) + tar_end()),
              ElementsAre("a.txt=1", "empty.txt=", "block=" + block, "folder/more=" + more));
  EXPECT_THAT(list(tar_end()), ElementsAre());
}

TEST_F(TarMembers, ExtendedHeadersApplyToNextMember) {
  const std::string name(300, 'n');
  EXPECT_THAT(list(tar_pax("path", name) + tar_member("short", "1") + tar_member("b", "2") +
                   tar_member("././@LongLink", name + '\0', 'L') + tar_member("short", "3") + tar_end()),
              ElementsAre(name + "=1", "b=2", name + "=3"));
  std::string header = tar_header("sized", 0);
  EXPECT_THAT(list(tar_pax("size", "3") + header + "abc" + std::string(509, '\0') + tar_end()),
              ElementsAre("sized=abc"));
  header[124] = static_cast<char>(0x80);
  header.replace(125, 10, 10, '\0');
  header[135] = 3;
  EXPECT_THAT(list(tar_checked(header) + "abc" + std::string(509, '\0') + tar_end()),
              ElementsAre("sized=abc"));
}

TEST_F(TarMembers, ReadsEveryFormatOfTarProgram) {
  const std::string name = "folder/" + std::string(90, 'd') + "/0001.txt";
  std::filesystem::create_directories((folder_ / name).parent_path());
  std::ofstream(folder_ / name) << "content";
  const std::string longer = "folder/" + std::string(200, 'd') + ".txt";
  std::ofstream(folder_ / longer) << "other";
  for (const std::string format : {"gnu", "oldgnu", "pax", "ustar", "v7"}) {
    std::vector<std::string> command = {"tar", "--format=" + format, "-C", folder_.path().string(),
                                        "-cf", path_.string(),       name};
    const bool takes_longer = format != "ustar" && format != "v7";
    if (takes_longer) command.push_back(longer);
    if (format == "v7")
      command.back() = "folder", std::filesystem::remove_all(folder_ / "folder"),
      std::filesystem::create_directories(folder_ / "folder"),
      std::ofstream(folder_ / "folder/x") << "content";
    ASSERT_EQ(test::run(command).exit_code, 0) << format;
    const std::vector<std::string> found = list_file();
    ASSERT_EQ(found.size(), takes_longer ? 2U : 1U) << format;
    EXPECT_EQ(found[0], (format == "v7" ? "folder/x" : name) + "=content") << format;
    if (takes_longer) {
      EXPECT_EQ(found[1], longer + "=other") << format;
    }
  }
}

TEST_F(TarMembers, ArchiveCutAtAnyPlaceIsRejected) {
  const std::string whole = tar_member("a.txt", "1") + tar_pax("path", "b.txt") + tar_member("b", "2");
  for (std::size_t kept = 0; kept <= whole.size(); kept += kept % 512 == 511 ? 1 : 73)
    EXPECT_THAT([&] { list(whole.substr(0, kept)); }, ThrowsMessage<DataError>(HasSubstr("cut short")))
        << kept;
}

TEST_F(TarMembers, UnreadableMemberIsNamedWithItsPlace) {
  const std::string good = tar_member("a.txt", "1");
  std::string damaged = tar_header("b.txt", 0);
  damaged[3] = 'y';
  rejects(good + damaged + tar_end(), "1024", "checksum");
  rejects(good + tar_member("/etc/a.txt", "1") + tar_end(), "1024, member '/etc/a.txt'", "leads out");
  rejects(good + tar_member("a/../../b.txt", "1") + tar_end(), "1024, member 'a/../../b.txt'", "leads out");
  rejects(good + tar_pax("path", "../b.txt") + tar_member("b.txt", "1") + tar_end(), "2048", "leads out");
  rejects(good + tar_member("b.txt", "", '2') + tar_end(), "1024, member 'b.txt'", "link");
  rejects(good + tar_member("b.txt", "", 'S') + tar_end(), "1024, member 'b.txt'", "sparse");
  rejects(good + tar_pax("GNU.sparse.major", "1") + tar_member("b.txt", "") + tar_end(), "1024", "sparse");
  rejects(good + tar_member("b.txt", "", '3') + tar_end(), "1024, member 'b.txt'", "type '3'");
  rejects(good + tar_header("b.txt", 1L << 32) + tar_end(), "1024, member 'b.txt'", "4294967296 bytes");
  rejects(good + tar_pax("size", "-1") + tar_member("b.txt", "") + tar_end(), "1024", "size");
  rejects(good + tar_pax("size", "99999999999999999999") + tar_member("b.txt", "") + tar_end(), "1024",
          "size");
  rejects(good + tar_member("x", "9999 path=b\n", 'x') + tar_end(), "1024", "damaged");
  rejects(good + tar_end() + good + tar_end(), "2048", "has members after its end");
  rejects("\x1f\x8b\x08" + good, "0", "gzip");
}

TEST_F(TarMembers, RejectsMalformedNumbersAsSize) {
  for (const std::string digits : {"0000000000x", "-0000000001", "           "}) {
    std::string header = tar_header("b.txt", 0);
    header.replace(124, 11, digits);
    rejects(tar_checked(header) + tar_end(), "0, member 'b.txt'", "size is not a number");
  }
  std::string header = tar_header("b.txt", 0);
  header.replace(124, 12, 12, '\xff');
  rejects(tar_checked(header) + tar_end(), "0, member 'b.txt'", "size is not a number");
}

}  // namespace
}  // namespace trireme::data
