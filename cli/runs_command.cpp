#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/runs_report.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using telemetry::ListedRun;

constexpr const char* kCompare = "compare";
constexpr const char* kRuns = "runs";

/// The path of a run's folder, or its name in the usual folder of runs.
ListedRun find_run(const std::string& given) {
  std::error_code ignored;
  const bool is_name = !fs::exists(given, ignored) && fs::exists(fs::path(kRuns) / given, ignored);
  return telemetry::look_at_run(is_name ? fs::path(kRuns) / given : fs::path(given));
}

void compare(const std::vector<std::string>& given, ReportFormat format) {
  require(given.size() >= 2, "trireme runs compare needs at least two runs, found ", given.size(),
          "; see: trireme runs --help");
  std::vector<ListedRun> runs;
  for (const std::string& each : given) runs.push_back(find_run(each));
  print_comparison(std::cout, runs, format);
}

int run_runs(const std::vector<std::string>& words, ReportFormat format) {
  if (!words.empty() && words.front() == kCompare) {
    compare({words.begin() + 1, words.end()}, format);
    return kExitOk;
  }
  require(words.size() <= 1, "trireme runs takes one folder, found also '", words.size() > 1 ? words[1] : "",
          "'; to set runs side by side: trireme runs compare RUN RUN");
  print_runs(std::cout, telemetry::list_runs(words.empty() ? kRuns : words.front()), format);
  return kExitOk;
}

}  // namespace

Command runs_command() {
  return {.name = "runs",
          .summary = "List the runs of a folder, or compare some of them",
          .usage = "[DIR | compare RUN RUN...] [OPTIONS]",
          .examples =
              "  trireme runs\n"
              "  trireme runs /data/experiments --json\n"
              "  trireme runs compare runs/quick runs/quick.1\n",
          .declare = [](CLI::App& app) -> std::function<int()> {
            struct Given {
              std::vector<std::string> words;
              bool json = false;
            };
            auto given = std::make_shared<Given>();
            app.add_option(
                   "words", given->words,
                   "Folder that holds runs (default: runs); or the runs to compare, by folder or name")
                ->type_name("DIR");
            app.add_flag("--json", given->json, "As JSON");
            return [given] {
              return run_runs(given->words, given->json ? ReportFormat::kJson : ReportFormat::kText);
            };
          }};
}

}  // namespace trireme::cli
