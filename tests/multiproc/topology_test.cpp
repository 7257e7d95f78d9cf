// `trireme topology` on the ranks of one host and of two hosts.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/two_hosts.h"
#include "trireme/base/files.h"

namespace trireme::test {
namespace {

using Json = nlohmann::json;

ChildResult topology(std::vector<std::string> words,
                     const std::map<std::string, std::string>& environment = {}) {
  words.insert(words.begin(), {bin("trireme"), "topology"});
  return run(words, environment);
}

TEST(Topology, FourRanksHaveEveryLinkEachWay) {
  const auto result = topology({"-n", "4", "--timeout", "30", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["host_of_rank"], Json({0, 0, 0, 0}));
  EXPECT_EQ(json["hosts"].size(), 1u);
  ASSERT_EQ(json["links"].size(), 12u);
  for (const Json& link : json["links"]) {
    EXPECT_GT(link["alpha_s"], 0.0);
    EXPECT_GT(link["bytes_per_s"], 0.0);
  }
}

TEST(Topology, OfOneRankDescribesTheHost) {
  const auto result = topology({"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_TRUE(json["links"].empty());
  EXPECT_GE(json["hosts"][0]["usable"], 1);
}

TEST(Topology, KnowsSocketsCachesAndNumaNodes) {
  // A machine that hwloc simulates: two sockets of four cores with two threads.
  const auto result = topology({"--json"}, {{"HWLOC_SYNTHETIC", "package:2 numa:1 l3:1 l2:4 core:1 pu:2"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json host = Json::parse(result.out)["hosts"][0];
  EXPECT_EQ(host["sockets"], 2);
  EXPECT_EQ(host["numa_nodes"], 2);
  EXPECT_EQ(host["cores"], 8);
  EXPECT_EQ(host["threads"], 16);
  ASSERT_EQ(host["caches"].size(), 2u);
  EXPECT_EQ(host["caches"][0]["name"], "L2");
  EXPECT_EQ(host["caches"][0]["count"], 8);
  EXPECT_EQ(host["caches"][1]["count"], 2);
}

TEST(Topology, IsNotMeasuredAgainWhenCached) {
  const TemporaryFolder folder;
  const std::string cache = (folder / "links").string();
  const auto measure = [&](const char* ranks) {
    return topology({"-n", ranks, "--timeout", "30", "--json", "--cache", cache});
  };
  const auto first = measure("2");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(measure("2").out, first.out);

  // Other ranks have their own cached result.
  const auto three = measure("3");
  EXPECT_EQ(Json::parse(three.out)["host_of_rank"].size(), 3u);
  EXPECT_EQ(measure("2").out, first.out);

  // An unreadable cache file is reported, and the links are measured again.
  for (const auto& file : std::filesystem::directory_iterator(cache)) write_file_atomic(file.path(), "{");
  const auto again = measure("2");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.err.find("measuring again"), std::string::npos) << again.err;
  EXPECT_NE(again.out, first.out);
  EXPECT_EQ(measure("2").out, again.out);
}

TEST(Topology, OfTwoHostsTellsThemApart) {
  const TwoHosts hosts;
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  const auto launchers =
      hosts.launch(2, {bin("trireme"), "topology", "--timeout", "30", "--why", "1KB,25MB"});
  const auto first = launchers[0]->wait(120);
  const auto second = launchers[1]->wait(120);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second.exit_code, 0) << second.err;
  for (const char* said : {"Latency between ranks", "The slowest link between 2 hosts", "cable 10 Gb/s",
                           "An all-reduce between 2 hosts, by formula"})
    EXPECT_NE(first.out.find(said), std::string::npos) << said << "\n" << first.out;
  EXPECT_EQ(second.out, "") << "rank 0 tells";
}

}  // namespace
}  // namespace trireme::test
