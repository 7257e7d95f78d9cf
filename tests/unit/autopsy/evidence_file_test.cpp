#include "trireme/autopsy/evidence_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::autopsy {
namespace {

using testing::HasSubstr;

Evidence example() {
  Evidence evidence;
  evidence.unix_s = 1000.5;
  evidence.world_size = 2;
  evidence.hosts.push_back({.name = "node0"});
  evidence.hosts[0].oom_kills = 2;
  RankEvidence& rank = evidence.ranks.emplace_back();
  rank.rank = 0;  // the default is another number
  rank.pid = 4711;
  rank.action = "step 3: 0B1";
  rank.waits_for = {1, 0};
  rank.ended = true;
  rank.group_limit_bytes = std::uint64_t{1} << 40;
  rank.busy = 0.25;
  rank.last_lines = {"one", "two"};
  rank.silent_peers = {{.address = "[::1]:80", .retransmissions = 3}};
  BlockedThread& thread = rank.blocked.emplace_back();
  thread.name = "load-0";
  thread.first = true;
  return evidence;
}

std::string message_of(const std::string& json) {
  try {
    decode(json);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(EvidenceFile, KeepsEveryField) {
  const Evidence read = decode(encode(example()));
  EXPECT_EQ(encode(read), encode(example()));
  EXPECT_EQ(read.ranks[0].rank, 0);
  EXPECT_EQ(read.ranks[0].waits_for, (std::vector{1, 0}));
  EXPECT_EQ(read.ranks[0].group_limit_bytes, std::uint64_t{1} << 40);
  EXPECT_TRUE(read.ranks[0].blocked[0].first);
  EXPECT_EQ(read.ranks[0].silent_peers[0].address, "[::1]:80");
  EXPECT_EQ(read.hosts[0].oom_kills, 2);
}

TEST(EvidenceFile, RejectsMalformedEvidence) {
  EXPECT_THAT(message_of("{"), HasSubstr("not JSON"));
  EXPECT_THAT(message_of("[]"), HasSubstr("expected an object, found array"));
  EXPECT_THAT(message_of(R"({"ranks": 3})"), HasSubstr("'ranks': expected a list, found number"));
  EXPECT_THAT(message_of(R"({"ranks": [{"rank": 1.5}]})"), HasSubstr("expected a whole number"));
  EXPECT_THAT(message_of(R"({"ranks": [{"ended": "yes"}]})"), HasSubstr("'ended': expected true or false"));
  EXPECT_THAT(message_of(R"({"unix_s": -1})"), HasSubstr("'unix_s': expected a number from 0"));
  EXPECT_THAT(message_of(R"({"ranks": [{"busy": 1e300}]})"), HasSubstr("found 1e+300"));
  std::string many = "{}";
  for (int i = 0; i < 300; ++i) many += ",{}";
  EXPECT_THAT(message_of(R"({"ranks": [)" + many + "]}"),
              HasSubstr("'ranks': expected a list of at most 256, found 301"));
  EXPECT_THAT(message_of(std::string(100, '[')), HasSubstr("levels deep"));
}

TEST(EvidenceFile, LeavesIdleRanksOfLargeWorldOut) {
  Evidence evidence;
  for (int number = 0; number < 4000; ++number) {
    RankEvidence& rank = evidence.ranks.emplace_back();
    rank.rank = number;
    rank.waits_for = {3999};
    rank.action = std::string(200, 'x');
  }
  evidence.ranks.back().waits_for.clear();
  const std::string json = encode(evidence);
  EXPECT_LT(json.size(), std::size_t{1} << 20);
  EXPECT_EQ(decode(json).ranks.back().rank, 3999);
}

TEST(EvidenceFile, IsBoundedForAnyOutputOfRanks) {
  const test::TemporaryFolder folder;
  Evidence evidence = example();
  evidence.ranks.resize(256, evidence.ranks[0]);
  for (RankEvidence& rank : evidence.ranks) rank.last_lines.assign(6, std::string(2000, '\x01'));
  write_file_atomic(folder / "autopsy.json", encode(evidence));
  EXPECT_FALSE(read_evidence(folder.path())->ranks.empty());
  EXPECT_EQ(nlohmann::json::parse(encode_all(evidence)).at("ranks").size(), 256U);
}

TEST(EvidenceFile, FastRankWithResetCountersIsRead) {
  Evidence evidence = example();
  evidence.ranks[0].bytes_per_s = 1e13;
  evidence.ranks[0].major_faults_per_s = -3;
  EXPECT_EQ(decode(encode(evidence)).ranks[0].bytes_per_s, 1e12);
  EXPECT_EQ(decode(encode(evidence)).ranks[0].major_faults_per_s, 0);
}

TEST(EvidenceFile, RejectsMoreHostsThanFitInMemory) {
  const test::TemporaryFolder folder;
  for (int node = 0; node < 300; ++node) {
    const auto path = folder / file_name(node, 300);
    write_file_atomic(path, "{");
    std::filesystem::resize_file(path, 1 << 20);  // a sparse file without disk blocks
  }
  try {
    read_evidence(folder.path());
    ADD_FAILURE() << "it was read";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("300 records of a failure have 314572800 bytes"));
  }
}

TEST(EvidenceFile, JoinsHostsAndLeavesEarlierFailureOut) {
  const test::TemporaryFolder folder;
  Evidence other = example();
  other.hosts[0].name = "node1";
  other.ranks[0].rank = 1;
  Evidence old = example();
  old.unix_s = 10;
  old.ranks[0].rank = 7;
  write_file_atomic(folder / file_name(0, 3), encode(example()));
  write_file_atomic(folder / file_name(1, 3), encode(other));
  write_file_atomic(folder / file_name(2, 3), encode(old));
  write_file_atomic(folder / "autopsy.x.json", "{");
  const auto all = read_evidence(folder.path());
  ASSERT_TRUE(all);
  ASSERT_EQ(all->ranks.size(), 2u);
  EXPECT_EQ(all->ranks[1].rank, 1);
  EXPECT_EQ(all->hosts.size(), 2u);
}

TEST(EvidenceFile, IsNotReadThroughALink) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "elsewhere", encode(example()));
  std::filesystem::create_symlink(folder / "elsewhere", folder / "autopsy.json");
  EXPECT_THROW(read_evidence(folder.path()), DataError);
}

TEST(SecurityEvidenceFiles, HaveNoLongerListsThanLauncherWrites) {
  std::string many = "{}";
  for (int i = 0; i < 20'000; ++i) many += ",{}";
  for (const char* list : {"blocked", "silent_peers"})
    EXPECT_THAT(message_of(text(R"({"ranks": [{")", list, R"(": [)", many, "]}]}")),
                HasSubstr(text("'", list, "': expected a list of at most 16, found 20001")));
}

TEST(SecurityEvidenceFiles, KeepsLimitedNumberOfHosts) {
  const test::TemporaryFolder folder;
  std::string ranks = "{}";
  for (int i = 1; i < 256; ++i) ranks += ",{}";
  for (int host = 0; host < 129; ++host)
    write_file_atomic(folder / file_name(host, 200), text(R"({"ranks": [)", ranks, "]}"));
  EXPECT_THAT([&] { read_evidence(folder.path()); },
              testing::ThrowsMessage<DataError>(HasSubstr("at most 32768 ranks in all files")));
}

TEST(SecurityEvidenceFiles, AFifoIsNotWaitedFor) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "autopsy.json").c_str(), 0600), 0);
  EXPECT_THAT([&] { read_evidence(folder.path()); },
              testing::ThrowsMessage<DataError>(HasSubstr("it is a FIFO")));
}

TEST(EvidenceFile, MayBeMissing) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(read_evidence(folder.path()));
  EXPECT_FALSE(read_evidence(folder / "none"));
}

}  // namespace
}  // namespace trireme::autopsy
