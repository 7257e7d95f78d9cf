// Output of `trireme topology` for links that were measured before: text, figure, rejections.

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

// Six ranks on three hosts: one with a rack of its own, 10 ms away.
const std::string kLinks = checkout("tests/golden/topology_links.json");

ChildResult topology(std::vector<std::string> words) {
  words.insert(words.begin(), {bin("trireme"), "topology"});
  return run(words);
}

TEST(CliTopology, ReportsMeasurementsAndFastestAllReduce) {
  const auto result = topology({"--from", kLinks, "--why", "1KB,64KB,1MB,25MB"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, read_file(checkout("tests/golden/cli_topology.txt")));
}

TEST(CliTopology, HelpIsTheGoldenText) {
  EXPECT_EQ(topology({"--help"}).out, read_file(checkout("tests/golden/cli_help_topology.txt")));
}

TEST(CliTopology, PrintsMeasuredLinksAsJson) {
  EXPECT_EQ(nlohmann::json::parse(topology({"--from", kLinks, "--json"}).out),
            nlohmann::json::parse(read_file(kLinks)));
  const auto why = nlohmann::json::parse(topology({"--from", kLinks, "--json", "--why", "1KiB"}).out);
  EXPECT_EQ(why["members"], 3);
  EXPECT_EQ(why["choices"][0]["bytes"], 1024);
  EXPECT_EQ(why["choices"][0]["fastest"], "direct");
  // a + 2 S (b + c) with 10 ms, 100 MB/s, 8 GB/s.
  EXPECT_NEAR(why["choices"][0]["seconds"]["direct"], 0.01 + 2 * 1024 * (1e-8 + 0.125e-9), 1e-12);
}

/// Ranks 0 to 5 on three hosts. The last host is 10 ms away.
TEST(CliTopology, NamesSlowestLinkAlongEachMeshAxis) {
  const auto result = topology({"--from", kLinks, "--mesh", "ep=3,dp=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, read_file(checkout("tests/golden/cli_topology_mesh.txt")));
  const auto json = nlohmann::json::parse(topology({"--from", kLinks, "--json", "--mesh", "tp=2"}).out);
  EXPECT_EQ(json["mesh"], "dp=3 x tp=2");
  EXPECT_EQ(json["axes"][0]["axis"], "dp");
  EXPECT_EQ(json["axes"][0]["groups"], (std::vector<std::vector<int>>{{0, 2, 4}, {1, 3, 5}}));
  EXPECT_EQ(json["axes"][1]["key"], "parallel.tensor");
  EXPECT_EQ(json["axes"][1]["most_hosts"], 1);
}

TEST(CliTopology, RejectsMeshThatDoesNotFitRanks) {
  const auto error_of = [](const std::string& mesh) {
    return topology({"--from", kLinks, "--mesh", mesh}).err;
  };
  EXPECT_NE(error_of("tp=4").find("there are 6"), std::string::npos) << error_of("tp=4");
  EXPECT_NE(error_of("ip=2").find("there is no axis 'ip'"), std::string::npos) << error_of("ip=2");
  EXPECT_NE(error_of("tp").find("no AXIS=SIZE"), std::string::npos) << error_of("tp");
  const auto both = topology({"--from", kLinks, "--json", "--why", "1KB", "--mesh", "tp=2"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("leave --why or --mesh out"), std::string::npos) << both.err;
}

TEST(CliTopology, DrawsEveryHostAndLink) {
  const TemporaryFolder folder;
  const std::string file = (folder / "links.svg").string();
  EXPECT_EQ(topology({"--from", kLinks, "--svg", file}).exit_code, 0);
  const std::string svg = read_file(file);
  for (const char* part :
       {"0: oar", "1: hull", "2: mast &lt;far&gt;", "2 ranks, 8 cores", "10.0 ms, 100 MB/s"})
    EXPECT_NE(svg.find(part), std::string::npos) << part << "\n" << svg;
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<line"); at != std::string::npos; at = svg.find("<line", at + 1)) ++lines;
  EXPECT_EQ(lines, 3u);
}

/// The captured numbers of each match: x and y of its center or its corner, and more.
std::vector<std::vector<double>> numbers_of(const std::string& svg, const std::string& pattern) {
  std::vector<std::vector<double>> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator each(svg.begin(), svg.end(), regex), end; each != end; ++each) {
    found.emplace_back();
    for (std::size_t i = 1; i < each->size(); ++i) found.back().push_back(std::stod((*each)[i]));
  }
  return found;
}

TEST(CliTopology, LinkLabelsCoverNeitherBoxesNorLabels) {
  const TemporaryFolder folder;
  const std::string file = (folder / "links.svg").string();
  const std::string links = checkout("tests/golden/topology_four_ranks.json");
  EXPECT_EQ(topology({"--from", links, "--svg", file}).exit_code, 0);
  const std::string svg = read_file(file);
  // Coordinates are centers of labels. A label is about 110 wide and 12 high.
  const auto words = numbers_of(svg, R"re(<text x="([0-9.]+)" y="([0-9.]+)" fill="#1d2733")re");
  ASSERT_EQ(words.size(), 6u);
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const double across = std::abs(words[i][0] - words[j][0]), down = std::abs(words[i][1] - words[j][1]);
      EXPECT_TRUE(across >= 100 || down >= 12) << i << " and " << j << "\n" << svg;
    }
    for (const auto& box :
         numbers_of(svg, R"re(<rect x="([0-9.]+)" y="([0-9.]+)" width="150.0" height="44.0")re")) {
      const double across = std::abs(words[i][0] - box[0] - 75),
                   down = std::abs(words[i][1] - 4 - box[1] - 22);
      EXPECT_TRUE(across >= 75 + 50 || down >= 22 + 6) << i << "\n" << svg;
    }
  }
}

TEST(CliTopology, RejectsInvalidRequestsBeforeStart) {
  const auto refused = [](const std::vector<std::string>& words, const std::string& because) {
    const auto result = topology(words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find(because), std::string::npos) << result.err;
  };
  refused({"-n", "2", "--why", "1KB,big"}, "'big' is no size");
  refused({"-n", "2", "--why", "0"}, "'0' is no size");
  refused({"-n", "2", "--why", "-1KB"}, "'-1KB' is no size");
  refused({"-n", "2", "--why", "1KB,"}, "'' is no size");
  refused({"-n", "2", "--svg", "/no/where/a.svg"}, "there is no folder /no/where");
  refused({"-n", "2", "--from", kLinks}, "leave -n and --cache out");
  refused({"-n", "2", "--timeout", "0"}, "--timeout");
}

TEST(SecurityTopologyFiles, HaveLimitsAndNumbersThatFit) {
  const TemporaryFolder folder;
  const auto error_of = [&](const std::string& content) {
    write_file_atomic(folder / "links.json", content);
    return topology({"--from", (folder / "links.json").string()}).err;
  };
  const std::string links = read_file(kLinks);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = links;
    return changed.replace(changed.find(from), from.size(), to);
  };
  EXPECT_THAT(error_of(with("\"probe_s\"", "\"links\": 1, \"probe_s\"")),
              HasSubstr("it has the key 'links' twice"));
  EXPECT_THAT(error_of(with("\"sockets\": 2", "\"sockets\": 4294967298")),
              HasSubstr("expected a whole number"));
  std::filesystem::resize_file(folder / "links.json", (std::uint64_t{128} << 20) + 1);
  EXPECT_THAT(topology({"--from", (folder / "links.json").string()}).err,
              HasSubstr("is not a topology: it has more than 134217728 bytes"));
}

TEST(CliTopology, ForeignFileIsDataError) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& content, const std::string& because) {
    write_file_atomic(folder / "links.json", content);
    const auto result = topology({"--from", (folder / "links.json").string()});
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_NE(result.err.find(because), std::string::npos) << result.err;
  };
  refused("", "is not what 'trireme topology --json' prints");
  refused("{}", "host_of_rank");
  refused(std::string(100, '['), "nests more than 8 levels deep");
  auto json = nlohmann::json::parse(read_file(kLinks));
  auto changed = json;
  changed["links"][3]["bytes_per_s"] = 0;
  refused(changed.dump(), "bytes_per_s is 0");
  changed = json;
  changed["links"].erase(5);
  refused(changed.dump(), "it has 29 links; expected 30");
  changed = json;
  changed["links"][1] = changed["links"][0];
  refused(changed.dump(), "two links from rank 0 to rank 1");
  changed = json;
  changed["host_of_rank"] = {0, 0, 2, 2, 1, 1};
  refused(changed.dump(), "order of their first rank");
  changed = json;
  changed["hosts"].erase(1);
  refused(changed.dump(), "it has 2 hosts, and ranks on 3");
  EXPECT_EQ(topology({"--from", "/no/where.json"}).exit_code, 4);
}

}  // namespace
}  // namespace trireme::test
