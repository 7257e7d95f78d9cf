#include "cli/top/top_text.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/top/top_json.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

using telemetry::Activity;
using telemetry::RankView;
using telemetry::RunView;
using testing::HasSubstr;
using testing::Not;

RankView rank_of(int rank, double own) {
  RankView view{.rank = rank, .pid = 4711 + rank, .step = 120, .steps_per_s = 3.25, .action = "0B3"};
  view.activity = Activity::kBackward;
  view.for_s = 0.012;
  view.own_share = own;
  view.wait_share = 1 - own;
  view.own_shares[static_cast<std::size_t>(Activity::kBackward)] = own;
  view.loader_fill = 0.5;
  view.rss_bytes = std::int64_t{3} << 29;
  view.sent_per_s = 12.5 * (1 << 20);
  view.disk[0].read = 2048;
  view.memory[MemoryKind::kWeights] = 1 << 20;
  view.cpu_share = 0.98;
  return view;
}

RunView view_of_two() {
  RunView view{.host = "node1", .run = "/data/runs/quick", .world_size = 2, .window_s = 10};
  view.ranks = {rank_of(1, 0.97), rank_of(0, 0.57)};
  view.ranks[1].waits = true;
  view.pressure.cpu.some = 23.9;
  view.pressure.memory.some = 0;
  return view;
}

TEST(TopText, ShowsSlowestFirstAndNamesStraggler) {
  const std::vector<std::string> lines = lines_of(view_of_two(), {.columns = 80, .rows = 24});
  EXPECT_EQ(join(lines, "\n"),
            "quick on node1: 2 ranks, step 120, 3.25 steps/s\n"
            "rank 1 takes 70 % longer than its peers, which costs 40 % of the time: most in\n"
            "backward, now: 0B3\n"
            "pressure  cpu 24 %  memory 0 %  disk -\n"
            "disk/s   data 4.0 KiB  checkpoints 0 B  offload 0 B\n"
            "memory peak  weights 2.0 MiB\n"
            "\n"
            "RANK     STEP  ACTION             FOR  OWN%  WAIT%  QUEUE%     MEMORY     LINK/s\n"
            "   1      120  0B3              12 ms    97      3      50    1.5 GiB   12.5 MiB\n"
            "   0      120  waits in 0B3     12 ms    57     43      50    1.5 GiB   12.5 MiB");
}

TEST(TopText, FitsIntoEverySize) {
  RunView view = view_of_two();
  for (int rank = 2; rank < 100; ++rank) view.ranks.push_back(rank_of(rank, 0.5));
  view.ranks[3].action = "saving a checkpoint to a folder whose name is \u00fc long ";
  view.ranks[3].action += std::string(300, 'x');
  for (const int columns : {20, 33, 40, 79, 80, 100, 132, 500}) {
    for (const int rows : {4, 8, 24, 60, 200}) {
      const std::vector<std::string> lines = lines_of(view, {.columns = columns, .rows = rows});
      EXPECT_LE(lines.size(), static_cast<std::size_t>(rows));
      for (const std::string& line : lines) {
        const auto width = std::ranges::count_if(line, [](unsigned char c) { return (c & 0xC0) != 0x80; });
        EXPECT_LE(width, columns) << line;
      }
    }
  }
  EXPECT_EQ(lines_of(view, {.columns = 80, .rows = 24}).back(), "... and 85 ranks that are faster");
  EXPECT_EQ(lines_of(view, {.columns = 80, .rows = 0}).size(), 108U);
}

TEST(TopText, SecurityEscapesControlCharactersInNames) {
  RunView view = view_of_two();
  view.run = "/data/runs/\x1b]0;owned\x07";
  view.host = "a\nb";
  view.ranks[0].action = "\x1b[2J\x1b[Hgone";
  for (const std::string& line : lines_of(view, {.columns = 200, .rows = 0}))
    for (const unsigned char c : line) EXPECT_GE(c, 0x20) << line;
}

TEST(TopText, SaysThatOtherHostsHaveTheirOwn) {
  RunView view = view_of_two();
  view.world_size = 8;
  EXPECT_THAT(lines_of(view, {.columns = 120}).front(), HasSubstr("2 of 8 ranks are on this host"));
  view.run = "";
  EXPECT_THAT(lines_of(view, {.columns = 120}).front(), HasSubstr("program without a run folder on node1"));
}

TEST(TopText, HasColoursOnlyOnRequest) {
  EXPECT_THAT(lines_of(view_of_two(), {.colours = true}).front(), HasSubstr("\x1b[1m"));
  EXPECT_THAT(join(lines_of(view_of_two(), {}), "\n"), Not(HasSubstr("\x1b")));
}

TEST(TopJson, HasTheNumbersOfTheView) {
  RunView view = view_of_two();
  view.ranks[0].spans = {
      {.begin_ns = 1'500'000'000, .activity = Activity::kForward, .waits = true, .microbatch = 2}};
  view.ranks[0].action = "\xff not UTF-8";
  const auto json = nlohmann::json::parse(json_of(view, Spans::kYes));
  EXPECT_EQ(json["straggler"]["rank"], 1);
  EXPECT_EQ(json["straggler"]["activity"], "backward");
  EXPECT_EQ(json["ranks"][0]["rank"], 1);
  EXPECT_EQ(json["ranks"][0]["step"], 120);
  EXPECT_EQ(json["ranks"][0]["disk_bytes_per_s"]["data"]["read"], 2048);
  EXPECT_TRUE(json["ranks"][0]["disk_bytes_per_s"]["process"].is_null());
  EXPECT_EQ(json["ranks"][0]["spans"], nlohmann::json::parse(R"([[1.5, "forward", true, 2]])"));
  EXPECT_TRUE(json["pressure_percent"]["io"]["some"].is_null());
  EXPECT_FALSE(nlohmann::json::parse(json_of(view, Spans::kNo))["ranks"][0].contains("spans"));
}

}  // namespace
}  // namespace trireme::cli
