#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "trireme/autopsy/evidence_file.h"
#include "trireme/autopsy/verdict.h"
#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/telemetry/run_data.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using telemetry::RunData;

constexpr const char* kFolderOfRuns = "runs";

/// The path of a run's folder, or its name in the usual folder of runs.
fs::path folder_of(const std::string& given) {
  std::error_code ignored;
  const bool is_name = !fs::exists(given, ignored) && fs::exists(fs::path(kFolderOfRuns) / given, ignored);
  const fs::path folder = is_name ? fs::path(kFolderOfRuns) / given : fs::path(given);
  if (!fs::is_directory(folder, ignored))
    throw DataError(text("there is no folder ", printable(given),
                         "; expected the folder of a run, or its name in ", kFolderOfRuns,
                         " (trireme runs lists them)"));
  return folder;
}

/// Evidence from the run's own files, if no launcher left any.
autopsy::Evidence evidence_of(const RunData& run) {
  autopsy::Evidence evidence;
  if (run.exit_code.value_or(kExitOk) == kExitOk) return evidence;
  autopsy::RankEvidence& rank = evidence.ranks.emplace_back();
  rank.ended = true;
  rank.exit_code = *run.exit_code;
  rank.last_lines = {"error: " + run.message};
  return evidence;
}

std::string status_of(const RunData& run) {
  return text("the run ", run.name, " is ", run.status, " after ", run.steps, " steps",
              run.message.empty() ? "" : ": ", printable_message(run.message));
}

int run_autopsy(const std::string& given, bool json) {
  const fs::path folder = folder_of(given);
  const std::optional<autopsy::Evidence> left = autopsy::read_evidence(folder);
  const bool is_run = telemetry::holds_run(folder);
  if (!left && !is_run)
    throw DataError(text(folder.string(),
                         " is no run's folder: it has no autopsy.json, config.toml, metrics.jsonl or "
                         "summary.json; trireme launch --autopsy ",
                         folder.string(), " writes the evidence of a failure there"));
  std::optional<RunData> run;
  if (is_run) run = telemetry::read_run(folder, telemetry::Metrics::kEnd);
  const autopsy::Evidence evidence = left ? *left : evidence_of(*run);
  const autopsy::Verdict verdict = autopsy::judge(evidence);
  if (json) {
    std::cout << autopsy::to_json(verdict, evidence);
    return kExitOk;
  }
  if (!verdict.cause.empty()) std::cout << printable_message(autopsy::paragraph(verdict)) << "\n";
  // The failure may belong to an earlier start of the run.
  if (run && (verdict.cause.empty() || run->status != "failed")) std::cout << status_of(*run) << "\n";
  return kExitOk;
}

}  // namespace

Command autopsy_command() {
  return {.name = "autopsy",
          .summary = "Name the rank and the cause of the latest failure of a run",
          .usage = "RUN [OPTIONS]",
          .examples =
              "  trireme autopsy quick\n"
              "  trireme autopsy runs/quick --json\n",
          .declare = [](CLI::App& app) -> std::function<int()> {
            struct Given {
              std::string run;
              bool json = false;
            };
            auto given = std::make_shared<Given>();
            app.add_option("run", given->run, "Folder of a run, or its name in runs")
                ->type_name("RUN")
                ->required();
            app.add_flag("--json", given->json, "As JSON, with the evidence");
            return [given] { return run_autopsy(given->run, given->json); };
          }};
}

}  // namespace trireme::cli
