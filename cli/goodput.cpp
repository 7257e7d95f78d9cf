#include "cli/goodput.h"

#include <charconv>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/numbers.h"
#include "cli/text_table.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/plan/goodput.h"

namespace trireme::cli {
namespace {

constexpr double kHour_s = 3600, kDay_s = 86400;
constexpr const char* kAuto = "auto";

struct Forecast {
  std::string recovery;
  plan::Goodput shares;
};

struct Interval {
  double used_s = 0, young_s = 0, daly_s = 0;
};

CLI::Validator interval() {
  return {[](const std::string& given) {
            std::string number = given;  // a copy, as a validator may change its argument
            const bool known = given == kAuto || above_zero()(number).empty();
            return known ? std::string() : text("'", given, "' is neither auto nor a number above 0");
          },
          ""};
}

double between_interruptions_s(const GoodputArguments& given) {
  if (given.interruptions > 0) return kDay_s / given.interruptions;
  require(given.hosts > 0 && given.mtbf_hours > 0,
          "--goodput needs --hosts and --mtbf-hours, or --interruptions-per-day; found ",
          given.hosts > 0        ? "--hosts alone"
          : given.mtbf_hours > 0 ? "--mtbf-hours alone"
                                 : "neither");
  return plan::time_between_interruptions_s(given.hosts, given.mtbf_hours * kHour_s);
}

Interval interval_of(const GoodputArguments& given, double between_s) {
  Interval interval = {.young_s = plan::young_interval_s(given.save_s, between_s),
                       .daly_s = plan::daly_interval_s(given.save_s, between_s)};
  interval.used_s = interval.daly_s;
  if (given.interval_s != kAuto)
    std::from_chars(given.interval_s.data(), given.interval_s.data() + given.interval_s.size(),
                    interval.used_s);
  return interval;
}

std::vector<Forecast> forecasts(const GoodputArguments& given, const plan::FailureCosts& costs) {
  std::vector<Forecast> all = {{.recovery = "full restart", .shares = plan::goodput(costs)}};
  if (given.elastic)
    all.push_back({.recovery = "elastic",
                   .shares = plan::elastic_goodput(costs, {.copy_interval_s = given.copy_interval_s,
                                                           .copy_s = given.copy_s,
                                                           .regroup_s = given.regroup_s})});
  return all;
}

std::string percent(double share) {
  char words[32];
  std::snprintf(words, sizeof words, "%.2f %%", 100 * share);
  return words;
}

void print_text(double between_s, const Interval& interval, const std::vector<Forecast>& all) {
  const bool chosen = interval.used_s == interval.daly_s;
  std::cout << "an interruption every " << human_duration(between_s) << " (" << kDay_s / between_s
            << " per day)\ninterval between saves: " << human_duration(interval.used_s)
            << (chosen ? "" : ", as given; recommended: ")
            << (chosen ? "" : human_duration(interval.daly_s).c_str())
            << " (Daly 2006; Young 1974: " << human_duration(interval.young_s) << ")\n\n";
  TextTable table = {
      .columns = {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight},
      .rows = {{"recovery", "goodput", "saving", "lost steps", "noticing", "restarting"}}};
  for (const auto& [recovery, shares] : all)
    table.rows.push_back({recovery, percent(shares.training), percent(shares.saving), percent(shares.lost),
                          percent(shares.noticing), percent(shares.restarting)});
  print(std::cout, table);
}

void print_json(double between_s, const Interval& interval, const std::vector<Forecast>& all) {
  nlohmann::ordered_json report = {{"between_interruptions_s", between_s},
                                   {"interval_s", interval.used_s},
                                   {"recommended_interval_s", interval.daly_s},
                                   {"young_interval_s", interval.young_s}};
  for (const auto& [recovery, shares] : all)
    report["recoveries"].push_back({{"recovery", recovery},
                                    {"goodput", shares.training},
                                    {"saving", shares.saving},
                                    {"lost_steps", shares.lost},
                                    {"noticing", shares.noticing},
                                    {"restarting", shares.restarting}});
  std::cout << report.dump(1) << "\n";
}

}  // namespace

void declare_goodput(CLI::App& app, GoodputArguments& given) {
  const std::vector<CLI::Option*> others = app.get_options();
  CLI::Option* asked = app.add_flag("--goodput", given.asked,
                                    "Of a whole job instead: the share of its wall time that trains");
  for (CLI::Option* other : others) {
    if (other != app.get_help_ptr()) other->excludes(asked);
  }
  const auto number = [&](const char* name, auto& value, const char* unit, const char* meaning) {
    return app.add_option(name, value, meaning)->type_name(unit)->needs(asked);
  };
  CLI::Option* hosts = number("--hosts", given.hosts, "N", "Hosts of the job")->check(above_zero());
  CLI::Option* mtbf = number("--mtbf-hours", given.mtbf_hours, "H", "Mean time between failures of one host")
                          ->check(above_zero());
  number("--interruptions-per-day", given.interruptions, "X", "Of the whole job, instead of these two")
      ->check(above_zero())
      ->excludes(hosts)
      ->excludes(mtbf);
  number("--save-s", given.save_s, "S", "Time for which a save blocks training")->check(above_zero());
  number("--restart-s", given.restart_s, "S", "Time from a detected failure to the first new step")
      ->check(zero_or_more());
  number("--notice-s", given.notice_s, "S", "Time until a failure is detected (default: 60)")
      ->check(zero_or_more());
  number("--interval-s", given.interval_s, "auto|S", "Training between two saves (default: auto, by Daly)")
      ->check(interval());
  CLI::Option* elastic =
      app.add_flag("--elastic", given.elastic, "Also: survivors continue from a copy in a peer's memory")
          ->needs(asked);
  number("--copy-interval-s", given.copy_interval_s, "S", "Training between two such copies (default: 60)")
      ->check(above_zero())
      ->needs(elastic);
  number("--copy-s", given.copy_s, "S", "Time for which a copy blocks training (default: 0)")
      ->check(zero_or_more())
      ->needs(elastic);
  number("--regroup-s", given.regroup_s, "S",
         "Time from a detected failure to the survivors' first new step (default: 30)")
      ->check(zero_or_more())
      ->needs(elastic);
}

void print_goodput(const GoodputArguments& given, ReportFormat format) {
  const double between_s = between_interruptions_s(given);
  require(given.save_s > 0 && given.restart_s >= 0,
          "--goodput needs --save-s, for which a save blocks training, and --restart-s, from a detected "
          "failure to "
          "the first new step; found ",
          given.save_s > 0       ? "--save-s alone"
          : given.restart_s >= 0 ? "--restart-s alone"
                                 : "neither");
  const Interval interval = interval_of(given, between_s);
  const std::vector<Forecast> all = forecasts(given, {.between_interruptions_s = between_s,
                                                      .save_s = given.save_s,
                                                      .interval_s = interval.used_s,
                                                      .notice_s = given.notice_s,
                                                      .restart_s = given.restart_s});
  format == ReportFormat::kJson ? print_json(between_s, interval, all) : print_text(between_s, interval, all);
}

}  // namespace trireme::cli
