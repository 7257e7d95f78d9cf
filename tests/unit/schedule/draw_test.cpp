#include "trireme/schedule/draw.h"

#include <gmock/gmock.h>

#include <regex>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::schedule {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Checks that XML elements are opened and closed in order. Returns the error, or "".
std::string xml_fault(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) return "a tag that does not end";
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "</" + tag.substr(1) + "> closes nothing";
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    if (open.empty() && xml.find('<', end) != std::string::npos) return "more than one root";
  }
  return open.empty() ? "" : "<" + open.back() + "> stays open";
}

TEST(Table, CellsStandBelowEachOther) {
  EXPECT_EQ(to_table(make_schedule("gpipe", {.num_ranks = 2, .num_microbatches = 2})),
            "rank 0  0F0 0F1             0B0 0B1\n"
            "rank 1      1F0 1F1 1B0 1B1\n");
}

/// The cells of a rank in order, without idle slots.
std::vector<std::string> cells_of_rank(const std::string& table, int rank) {
  std::istringstream line(split(table, '\n').at(static_cast<std::size_t>(rank)));
  std::vector<std::string> cells;
  for (std::string word; line >> word;) cells.push_back(word);
  cells.erase(cells.begin(), cells.begin() + 2);  // "rank 0"
  std::erase_if(cells, [](const std::string& cell) { return cell.ends_with("REDUCE_GRAD"); });
  return cells;
}

// PipeDream, SOSP 2019, figure 4 and section 3.3, whose minibatches count from 1. On the first stage,
// minibatch 5 uses the weights after the update of minibatch 1, forward and backward. On the third stage it
// uses those after the update of minibatch 3.
TEST(Table, PipeDreamHasVersionsOfItsFigure) {
  const Program order = make_schedule("pipedream", {.num_ranks = 4, .num_microbatches = 5});
  const std::string table = to_table(order);
  EXPECT_THAT(cells_of_rank(table, 0),
              ElementsAre("0F0:v0", "0F1:v0", "0F2:v0", "0F3:v0", "0B0:v0", "0STEP:v1", "0F4:v1", "0B1:v0",
                          "0STEP:v2", "0B2:v0", "0STEP:v3", "0B3:v0", "0STEP:v4", "0B4:v1", "0STEP:v5"));
  EXPECT_THAT(cells_of_rank(table, 2),
              ElementsAre("2F0:v0", "2F1:v0", "2B0:v0", "2STEP:v1", "2F2:v1", "2B1:v0", "2STEP:v2", "2F3:v2",
                          "2B2:v1", "2STEP:v3", "2F4:v3", "2B3:v2", "2STEP:v4", "2B4:v3", "2STEP:v5"));
  EXPECT_THAT(table, HasSubstr("\nvN: the weights of the stage after N updates"));
}

// Vertical sync (section 3.3): every stage uses the version that was newest on the first stage at the
// forward.
TEST(Table, VerticalSyncHasOneVersionPerMicrobatch) {
  const std::string table =
      to_table(make_schedule("pipedream", {.num_ranks = 2, .num_microbatches = 4, .vertical_sync = true}));
  EXPECT_THAT(cells_of_rank(table, 1),
              ElementsAre("1F0:v0", "1B0:v0", "1STEP:v1", "1F1:v0", "1B1:v0", "1STEP:v2", "1F2:v1", "1B2:v1",
                          "1STEP:v3", "1F3:v2", "1B3:v2", "1STEP:v4"));
}

// PipeDream-2BW, arXiv 2006.09503, section 3.1: group t of micro-batches uses the weights after t - 1
// updates.
TEST(Table, PipeDream2BwIsOneUpdateAfter) {
  const std::string table =
      to_table(make_schedule("pipedream-2bw", {.num_ranks = 2, .num_microbatches = 6, .update_every = 2}));
  EXPECT_THAT(cells_of_rank(table, 1),
              ElementsAre("1F0:v0", "1B0:v0", "1F1:v0", "1B1:v0", "1STEP:v1", "1F2:v0", "1B2:v0", "1F3:v0",
                          "1B3:v0", "1STEP:v2", "1F4:v1", "1B4:v1", "1F5:v1", "1B5:v1", "1STEP:v3"));
}

// Each replica of the first stage has every second micro-batch. Both update together, once per round.
TEST(Table, RoundRobinReplicasCountRounds) {
  const std::string table =
      to_table(make_schedule("1f1b-rr", {.num_ranks = 3, .num_microbatches = 4, .replicas = {2, 1}}));
  EXPECT_THAT(cells_of_rank(table, 0),
              ElementsAre("0F0:v0", "0F2:v0", "0B0:v0", "0STEP:v1", "0B2:v0", "0STEP:v2"));
  EXPECT_THAT(cells_of_rank(table, 2),
              ElementsAre("1F0:v0", "1B0:v0", "1STEP:v1", "1F1:v1", "1B1:v1", "1STEP:v2", "1F2:v2", "1B2:v2",
                          "1STEP:v3", "1F3:v3", "1B3:v3", "1STEP:v4"));
}

TEST(Table, OverlappedPairHasVersionsOfParts) {
  Program order = parse_csv(
      "0F0,0F1,0B0,0REDUCE_GRAD,0STEP,(0F2;0B1)OVERLAP_F_B,0REDUCE_GRAD,0STEP,0B2,0REDUCE_GRAD,0STEP\n");
  order.update_every = 1;
  order.versions = WeightVersions::kStashed;
  EXPECT_THAT(cells_of_rank(to_table(order), 0),
              ElementsAre("0F0:v0", "0F1:v0", "0B0:v0", "0STEP:v1", "(0F2:v1;0B1:v0)OVERLAP_F_B", "0STEP:v2",
                          "0B2:v1", "0STEP:v3"));
}

TEST(Svg, AsynchronousBoxesShowWeightVersion) {
  const Program order = make_schedule("pipedream", {.num_ranks = 4, .num_microbatches = 5});
  const std::string svg = to_svg(order, simulate(order), {View::kDevice});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, ContainsRegex("<title>0F4 with v1</title></rect>\n<text class=\"n\"[^>]*>4</text>\n"
                                 "<text class=\"n v\"[^>]*>v1</text>"));
  EXPECT_THAT(svg, ContainsRegex("<title>0STEP makes v1</title></rect>\n<text class=\"n v\"[^>]*>v1</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>2B4 with v3</title>"));
  EXPECT_THAT(svg, HasSubstr("vN: weights after N updates of the stage"));
  const Program flushing = make_schedule("1f1b", {.num_ranks = 4, .num_microbatches = 5});
  EXPECT_THAT(to_svg(flushing, simulate(flushing)), Not(HasSubstr("v0")));
}

TEST(Svg, IsOneSelfContainedElement) {
  for (const ScheduleRow& row : schedules()) {
    const Program order = make_schedule(row.name, {.num_ranks = 4, .num_microbatches = 8});
    const std::string svg = to_svg(order, simulate(order));
    EXPECT_EQ(xml_fault(svg), "") << row.name;
    EXPECT_THAT(svg, testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    EXPECT_THAT(svg, Not(HasSubstr("href")));
    EXPECT_THAT(svg, Not(HasSubstr("<script")));
  }
}

TEST(Svg, NumberIsOnlyInBoxThatFits) {
  const Program order = make_schedule("1f1b", {.num_ranks = 4, .num_microbatches = 64});
  const std::string svg = to_svg(order, simulate(order));
  const std::regex numbered(
      "<rect class=\"a\" [^>]*width=\"([0-9.]+)\"[^\n]*\n<text class=\"n[^>]*>([0-9]+)<");
  std::size_t seen = 0;
  for (std::sregex_iterator each(svg.begin(), svg.end(), numbered), end; each != end; ++each, ++seen) {
    const std::size_t digits = (*each)[2].str().size();
    EXPECT_GE(std::stod((*each)[1]), 6.0 * static_cast<double>(digits)) << (*each)[2];
  }
  EXPECT_GT(seen, 200u);
  EXPECT_THAT(svg, HasSubstr("<title>0F63</title>")) << "the mouse still tells it";
}

TEST(Svg, OneItemIsSingular) {
  const Program order = make_schedule("1f1b", {.num_ranks = 1, .num_microbatches = 1});
  EXPECT_THAT(to_svg(order, simulate(order)), HasSubstr("1 rank, 1 stage, 1 micro-batch; cost"));
}

TEST(Svg, ShowsEveryActionAndEscapesName) {
  Program order = make_schedule("zb-h1", {.num_ranks = 2, .num_microbatches = 2});
  order.name = "a<b & \"c\"";
  const std::string svg = to_svg(order, simulate(order));
  EXPECT_THAT(svg, HasSubstr("a&lt;b &amp; &quot;c&quot;"));
  for (const char* token : {"0F0", "1I1", "0W1"}) {
    const std::string title = "<title>" + std::string(token) + "</title>";
    EXPECT_NE(svg.find(title), svg.rfind(title)) << token;
  }
}

/// The horizontal position of the first box of an action, in units of the width of a box of `unit`.
double place_of(const std::string& svg, const std::string& action, const std::string& unit) {
  const auto number_before = [&](const std::string& title, const std::string& name) {
    const std::size_t at =
        svg.rfind(name + "=\"", svg.find("<title>" + title + "</title>")) + name.size() + 2;
    return std::stod(svg.substr(at));
  };
  constexpr double kLeft = 64;
  return (number_before(action, " x") - kLeft) / number_before(unit, " width");
}

TEST(Svg, DeviceViewOrdersActionsByDependencies) {
  const Program order = make_schedule("naive", {.num_ranks = 2, .num_microbatches = 2});
  // Slots: 0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1. A backward takes three times as long as a forward, which slots do
  // not show.
  const std::string svg = to_svg(order, simulate(order, {.stages = {{1, 3, 0}}}), {View::kDevice});
  EXPECT_NEAR(place_of(svg, "1F0", "0F0"), 1, 0.01);
  EXPECT_NEAR(place_of(svg, "0B0", "0F0"), 3, 0.01);
  EXPECT_NEAR(place_of(svg, "1B1", "0F0"), 6, 0.01);
}

TEST(Svg, TheTimeViewIsToScale) {
  const Program order = make_schedule("naive", {.num_ranks = 2, .num_microbatches = 2});
  const std::string svg = to_svg(order, simulate(order, {.stages = {{1, 3, 0}}}), {View::kTime});
  EXPECT_NEAR(place_of(svg, "0B0", "0F0"), 5, 0.02);
  EXPECT_NEAR(place_of(svg, "0B0", "1B0"), 5.0 / 3, 0.01);
}

TEST(Svg, MicrobatchViewHasRowForEach) {
  const Program order = make_schedule("zb-h1", {.num_ranks = 2, .num_microbatches = 3});
  const std::string svg = to_svg(order, simulate(order), {View::kMicrobatches});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, HasSubstr(">mb 2</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">rank 0</text>")));
  EXPECT_THAT(svg, HasSubstr("<title>1I2</title></rect>\n<text"));
  EXPECT_THAT(svg, Not(HasSubstr("1W2")));
}

TEST(Svg, ViewsHaveNames) {
  EXPECT_EQ(parse_view("microbatches"), View::kMicrobatches);
  EXPECT_THROW(parse_view("devise"), InvalidArgument);
  const Program order = make_schedule("naive", {.num_ranks = 2, .num_microbatches = 2});
  EXPECT_THROW(to_svg(order, simulate(order), {}), InvalidArgument);
}

TEST(Svg, LeavesTransfersOut) {
  const Program step = lower(make_schedule("1f1b", {.num_ranks = 2, .num_microbatches = 2}));
  const std::string svg = to_svg(step, simulate(step));
  EXPECT_THAT(svg, Not(HasSubstr("SEND")));
  EXPECT_THAT(svg, HasSubstr("0STEP"));
}

}  // namespace
}  // namespace trireme::schedule
