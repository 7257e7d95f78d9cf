#include "trireme/telemetry/report.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/telemetry/line_chart.h"
#include "trireme/telemetry/page_text.h"

namespace trireme::telemetry {
namespace {

using testing::HasSubstr;
using testing::Not;

Curve line(std::size_t points) {
  Curve curve;
  for (std::size_t i = 0; i < points; ++i)
    curve.push_back({static_cast<double>(i), static_cast<double>(i % 7)});
  return curve;
}

TEST(PageText, EscapesHtmlCharacters) {
  EXPECT_EQ(escape_html("<a href=\"x\">&'</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;&lt;/a&gt;");
}

TEST(PageText, NumbersAreShort) {
  EXPECT_EQ(short_number(0.91224), "0.9122");
  EXPECT_EQ(short_number(12500), "12.5k");
  EXPECT_EQ(short_number(3.1e6), "3.1M");
  EXPECT_EQ(short_number(2e-9), "2e-9");
  EXPECT_EQ(short_number(-0.0), "0");
}

TEST(Curve, ThinningKeepsTheEndsAndEverySpike) {
  Curve curve = line(5000);
  curve[1234].value = 100;
  curve[4321].value = -100;
  const Curve thin = thinned(curve, 200);
  EXPECT_LE(thin.size(), 200u);
  EXPECT_EQ(thin.front().step, 0);
  EXPECT_EQ(thin.back().step, 4999);
  const auto has = [&](double value) {
    return std::any_of(thin.begin(), thin.end(), [&](const Point& point) { return point.value == value; });
  };
  EXPECT_TRUE(has(100));
  EXPECT_TRUE(has(-100));
  EXPECT_EQ(thinned(line(50), 200).size(), 50u) << "nothing to thin";
}

TEST(Curve, SmoothingIsAMeanAround) {
  const Curve smooth = smoothed({{0, 0}, {1, 3}, {2, 6}, {3, 9}}, 3);
  ASSERT_EQ(smooth.size(), 4u);
  EXPECT_EQ(smooth[1].value, 3);
  EXPECT_EQ(smooth[2].value, 6);
}

/// Texts of all ticks of an axis. Those of values end at the axis.
std::vector<std::string> ticks_of(const std::string& figure, const std::string& anchor) {
  std::vector<std::string> ticks;
  const std::string before = "text-anchor=\"" + anchor + "\">";
  for (auto at = figure.find(before); at != std::string::npos; at = figure.find(before, at + 1)) {
    const auto begin = at + before.size();
    ticks.push_back(figure.substr(begin, figure.find('<', begin) - begin));
  }
  if (anchor == "end") ticks.pop_back();  // the name of the axis
  return ticks;
}

TEST(LineChart, AccuraciesStayBetween0And1) {
  const auto values = [](double first, double last) {
    return ticks_of(figure_of({.title = "Accuracy",
                               .unit = "",
                               .series = {{"accuracy", {{50, first}, {100, last}}, 1, LineStyle::kDots}}}),
                    "end");
  };
  EXPECT_THAT(values(1, 1), testing::AllOf(testing::Contains("1"), testing::Contains("0.9"),
                                           Not(testing::Contains("1.1"))));
  EXPECT_THAT(values(0.7, 0.99), testing::AllOf(testing::Contains("1"), Not(testing::Contains("1.05"))));
  EXPECT_THAT(values(0, 0), testing::AllOf(testing::Contains("0"), testing::Contains("1")));
  EXPECT_THAT(values(0.98, 1.3), testing::Contains("1.3")) << "another metric";
}

TEST(LineChart, TicksBesideEachOtherReadDifferently) {
  const std::string figure = figure_of(
      {.title = "Loss",
       .unit = "",
       .series = {{"train", {{1'000'000, 2.300121}, {1'000'200, 2.300188}, {1'000'500, 2.300139}}}}});
  for (const char* anchor : {"end", "middle"}) {
    const std::vector<std::string> ticks = ticks_of(figure, anchor);
    EXPECT_GE(ticks.size(), 4u);
    EXPECT_EQ(std::set<std::string>(ticks.begin(), ticks.end()).size(), ticks.size())
        << testing::PrintToString(ticks);
  }
}

TEST(LineChart, OnePointIsSeen) {
  const Curve point = {{1, 0.25}};
  EXPECT_THAT(figure_of({.title = "Loss", .unit = "", .series = {{"train", point}}}),
              HasSubstr("<circle class=\"dot s0\""));
  const std::string shares = figure_of(
      {.title = "Time", .unit = "", .series = {{"computing", point}}, .scale = ChartScale::kShares});
  EXPECT_THAT(shares, testing::ContainsRegex("class=\"area s0\" d=\"M52.0 [0-9.]+L546.0 "))
      << "over the whole width";
}

class Report : public testing::Test {
 protected:
  void write(const char* file, const std::string& content) { write_file_atomic(folder_ / file, content); }

  void write_run() {
    write(
        "config.toml",
        "[run]\nname = \"a <b>\"\n[data]\nname = \"text\"\n[model]\nname = \"gpt\"\n[optimizer]\nlr = 0.1\n");
    write("metrics.jsonl",
          "{\"event\":\"step\",\"step\":1,\"loss\":4.2,\"lr\":0.1,\"samples_per_s\":100.0}\n"
          "{\"event\":\"step\",\"step\":2,\"loss\":null,\"lr\":0.1,\"samples_per_s\":110.0}\n"
          "{\"event\":\"eval\",\"step\":2,\"validation_loss\":2.5,\"validation_accuracy\":0.25}\n");
    write(
        "summary.json",
        "{\"name\":\"a <b>\",\"status\":\"completed\",\"validation_loss\":2.5,\"steps\":2,\"world_size\":4}");
  }

  std::string error_of_reading() {
    try {
      read_run(folder_.path());
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }

  test::TemporaryFolder folder_;
};

TEST_F(Report, ReadsSettingsCurvesAndResults) {
  write_run();
  const RunData run = read_run(folder_.path());
  EXPECT_EQ(run.status, "completed");
  EXPECT_EQ(run.steps, 2);
  EXPECT_EQ(run.setting("optimizer.lr"), "0.1");
  EXPECT_EQ(run.curve("loss").size(), 1u) << "a loss that was no number leaves a gap";
  EXPECT_EQ(run.curve("samples_per_s").size(), 2u);
  EXPECT_EQ(run.result("validation_loss"), 2.5);
  EXPECT_EQ(run.result("nothing"), std::nullopt);
}

TEST_F(Report, DrawsGpuReadings) {
  write_run();
  const auto page_of = [&] {
    write_report(folder_.path());
    return read_file(folder_ / "report.html");
  };
  EXPECT_THAT(page_of(), Not(HasSubstr("GPU")));
  write("metrics.jsonl",
        "{\"event\":\"step\",\"step\":1,\"gpu_0_utilization\":0.5,\"gpu_0_memory_used_bytes\":3221225472,"
        "\"gpu_1_utilization\":0.25}\n");
  const std::string page = page_of();
  EXPECT_THAT(page, HasSubstr("GPU utilization"));
  EXPECT_THAT(page, HasSubstr("step 1\nGPU 0 50"));
  EXPECT_THAT(page, HasSubstr("GPU memory"));
  EXPECT_THAT(page, HasSubstr("step 1\nGPU 0 3"));
  EXPECT_THAT(page, Not(HasSubstr("GPU power"))) << "nothing was told of it";
}

TEST_F(Report, SettingsHaveShortestExactForm) {
  write_run();
  write("config.toml",
        "rate = 1.0\nrates = [1, 0.1, 1e-30, inf]\ndate = 1979-05-27\nnames = ['a', \"it's\"]\n"
        "tables = [{ a.b = 0.25, c = true }]\n");
  const RunData run = read_run(folder_.path());
  EXPECT_EQ(run.setting("rate"), "1.0");
  EXPECT_EQ(run.setting("rates"), "[1, 0.1, 1e-30, inf]");
  EXPECT_EQ(run.setting("date"), "1979-05-27");
  EXPECT_EQ(run.setting("names"), "['a', \"it's\"]");
  EXPECT_EQ(run.setting("tables"), "[{ 'a' = { 'b' = 0.25 }, 'c' = true }]");
}

TEST_F(Report, PendingRunIsUnfinished) {
  write_run();
  // As after a resume: steps after those of the summary, and an incomplete line.
  write("metrics.jsonl", "{\"event\":\"step\",\"step\":9,\"loss\":1.5}\n{\"event\":\"st");
  const RunData run = read_run(folder_.path());
  EXPECT_EQ(run.status, "unfinished");
  EXPECT_EQ(run.steps, 9);
}

TEST_F(Report, DamagedFilesAreNamedWithTheLine) {
  EXPECT_THAT(error_of_reading(), HasSubstr("is no run's folder"));
  write("metrics.jsonl", "{\"step\":1}\nrubbish\n{\"step\":2}\n");
  EXPECT_THAT(error_of_reading(),
              HasSubstr("metrics.jsonl:2: expected a JSON object on the line, found 'rubbish'"));
  write_run();
  write("summary.json", "[1]");
  EXPECT_THAT(error_of_reading(), HasSubstr("summary.json: expected one JSON object"));
  for (const char* steps : {"1e300", "-1"}) {
    write("summary.json", text("{\"status\":\"completed\",\"steps\":", steps, "}"));
    EXPECT_THAT(error_of_reading(), HasSubstr("summary.json: expected a number of steps")) << steps;
  }
  write_run();
  write("config.toml", "[run\n");
  EXPECT_THAT(error_of_reading(), HasSubstr("config.toml:1"));
  std::string key = "a";
  for (int i = 0; i < 300'000; ++i) key += ".a";
  write("config.toml", "\n" + key + " = 1\n");
  EXPECT_THAT(error_of_reading(), HasSubstr("config.toml:2: a key of more than"));
}

TEST_F(Report, IsOneSelfContainedEscapedPage) {
  write_run();
  write_report(folder_.path());
  const std::string page = read_file(folder_ / "report.html");
  for (const char* expected :
       {"<!DOCTYPE html>", "completed", "<svg", "validation", "4 ranks", "optimizer"}) {
    EXPECT_THAT(page, HasSubstr(expected));
  }
  EXPECT_THAT(page, HasSubstr("a &lt;b&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("a <b>")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("@import")));
}

TEST_F(Report, NumbersHaveTheirUnits) {
  write_run();
  write("summary.json",
        "{\"name\":\"a\",\"status\":\"completed\",\"steps\":10000,\"checkpoint_stall_s\":0.012,"
        "\"sent_bytes_of_step\":203648,\"samples_per_s\":1234.5}");
  const std::string page = report_page({.run = read_run(folder_.path()), .machine = {}});
  for (const char* row :
       {"<td>steps</td><td>10000</td>", "<td>checkpoint stall</td><td>12 ms</td>",
        "<td>sent bytes of step</td><td>198.9 KiB</td>", "<td>samples/s, all ranks</td><td>1234</td>"})
    EXPECT_THAT(page, HasSubstr(row));
  write("metrics.jsonl", "{\"event\":\"step\",\"step\":1,\"loss\":4.2}\n");
  write("summary.json", "{\"name\":\"a\",\"status\":\"completed\",\"steps\":1}");
  EXPECT_THAT(report_page({.run = read_run(folder_.path()), .machine = {}}), HasSubstr("1 step "));
}

TEST_F(Report, LeavesOutUnmeasuredValues) {
  write_run();
  EXPECT_THAT(report_page({.run = read_run(folder_.path()), .machine = {}}), Not(HasSubstr("Gradient norm")));
  write("metrics.jsonl", "{\"event\":\"step\",\"step\":1,\"loss\":4.2,\"grad_norm\":1.5}\n");
  EXPECT_THAT(report_page({.run = read_run(folder_.path()), .machine = {}}), HasSubstr("Gradient norm"));
}

}  // namespace
}  // namespace trireme::telemetry
