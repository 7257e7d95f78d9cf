// Output of `trireme simulate --goodput`: exact text or numbers.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/golden/golden_text.h"
#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "trireme/plan/goodput.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

ChildResult goodput_of(std::vector<std::string> words) {
  words.insert(words.begin(), {bin("trireme"), "simulate", "--goodput"});
  return run(words);
}

TEST(CliGoodput, PrintsFullRestartComparedWithElastic) {
  const auto result = goodput_of(
      {"--hosts", "2048", "--mtbf-hours", "10000", "--save-s", "20", "--restart-s", "300", "--elastic"});
  EXPECT_EQ(result.out, golden("goodput")) << result.err;
}

TEST(CliGoodput, JsonHasTheFiguresOfTheModel) {
  const auto result = goodput_of({"--interruptions-per-day", "4", "--save-s", "30", "--restart-s", "200",
                                  "--notice-s", "10", "--interval-s", "900", "--elastic", "--copy-interval-s",
                                  "20", "--copy-s", "0.5", "--regroup-s", "15", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  const plan::FailureCosts costs = {
      .between_interruptions_s = 21600, .save_s = 30, .interval_s = 900, .notice_s = 10, .restart_s = 200};
  EXPECT_EQ(json["between_interruptions_s"], 21600);
  EXPECT_EQ(json["interval_s"], 900);
  EXPECT_EQ(json["recommended_interval_s"], plan::daly_interval_s(30, 21600));
  EXPECT_EQ(json["young_interval_s"], plan::young_interval_s(30, 21600));
  ASSERT_EQ(json["recoveries"].size(), 2U);
  const auto expect_row = [](const nlohmann::json& row, const std::string& name,
                             const plan::Goodput& shares) {
    EXPECT_EQ(row["recovery"], name);
    EXPECT_EQ(row["goodput"], shares.training);
    EXPECT_EQ(row["saving"], shares.saving);
    EXPECT_EQ(row["lost_steps"], shares.lost);
    EXPECT_EQ(row["noticing"], shares.noticing);
    EXPECT_EQ(row["restarting"], shares.restarting);
  };
  expect_row(json["recoveries"][0], "full restart", plan::goodput(costs));
  expect_row(json["recoveries"][1], "elastic",
             plan::elastic_goodput(costs, {.copy_interval_s = 20, .copy_s = 0.5, .regroup_s = 15}));
}

TEST(CliGoodput, NamesGivenAndRecommendedInterval) {
  const auto result = goodput_of(
      {"--interruptions-per-day", "4", "--save-s", "30", "--restart-s", "200", "--interval-s", "3600"});
  EXPECT_THAT(result.out, HasSubstr("interval between saves: 1h 00m, as given; recommended: 18m 38s (Daly"));
  EXPECT_THAT(result.out, Not(HasSubstr("elastic")));
}

TEST(CliGoodput, RejectsMissingAndInvalidArguments) {
  const auto said = [](std::vector<std::string> words) {
    const auto result = goodput_of(std::move(words));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_EQ(said({"--hosts", "4"}),
            "trireme: error: --goodput needs --hosts and --mtbf-hours, or --interruptions-per-day; found "
            "--hosts alone\n");
  EXPECT_EQ(
      said({"--interruptions-per-day", "3", "--save-s", "5"}),
      "trireme: error: --goodput needs --save-s, for which a save blocks training, and --restart-s, from "
      "a detected failure to the first new step; found --save-s alone\n");
  EXPECT_THAT(said({"--ranks", "4"}), HasSubstr("--ranks excludes --goodput"));
  EXPECT_THAT(said({"--hosts", "4", "--interruptions-per-day", "3"}),
              HasSubstr("--hosts excludes --interruptions-per-day"));
  EXPECT_THAT(said({"--copy-s", "1"}), HasSubstr("--copy-s requires --elastic"));
  EXPECT_THAT(said({"--interval-s", "0"}),
              HasSubstr("--interval-s: '0' is neither auto nor a number above 0"));
  EXPECT_THAT(said({"--save-s", "0"}), HasSubstr("--save-s: '0' is no number above 0"));
  EXPECT_THAT(said({"--interruptions-per-day", "1e6", "--save-s", "99", "--restart-s", "9"}),
              HasSubstr("no interval between saves is ever completed"));
  const auto alone = run({bin("trireme"), "simulate", "--hosts", "4"});
  EXPECT_THAT(alone.err, HasSubstr("--hosts requires --goodput"));
}

}  // namespace
}  // namespace trireme::test
