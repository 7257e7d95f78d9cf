#include "cli/runs_report.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <sstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/telemetry/run_listing.h"

namespace trireme::cli {
namespace {

using testing::HasSubstr;

/// Whether a terminal would do something other than show text and begin lines.
bool acts_on_a_terminal(const std::string& words) {
  return std::ranges::any_of(words, [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7f; });
}

// A folder of runs may be untrusted.
TEST(SecurityRunsReport, ControlCharactersOfFilesAreEscaped) {
  const test::TemporaryFolder folder;
  const std::filesystem::path run = folder / "evil\x1b[2J";
  make_folder(run);
  write_file_atomic(run / "metrics.jsonl", "{\"event\":\"step\",\"step\":1,\"loss\":2.3}\n");
  write_file_atomic(run / "config.toml",
                    "[run]\nname = \"a\"\n[data]\nname = \"d\\u001b[31m\"\n[model]\nname = \"m\\u0007\"\n");
  write_file_atomic(
      run / "end.json",
      "{\"status\": \"failed\\u001b[31m\", \"exit_code\": 3, \"message\": \"rank \\u001b[2J1\\r\", "
      "\"steps\": 1}");
  const auto listed = telemetry::list_runs(folder.path());
  ASSERT_EQ(listed.size(), 1u);
  std::ostringstream table, comparison;
  print_runs(table, listed, ReportFormat::kText);
  print_comparison(comparison, listed, ReportFormat::kText);
  for (const std::string& words : {table.str(), comparison.str()}) {
    EXPECT_FALSE(acts_on_a_terminal(words)) << words;
    EXPECT_THAT(words, testing::AllOf(HasSubstr("evil\\x1b[2J"), HasSubstr("failed\\x1b[31m")));
  }
  EXPECT_THAT(table.str(), testing::AllOf(HasSubstr("rank \\x1b[2J1\\r"), HasSubstr("m\\x07/d\\x1b[31m")));
}

}  // namespace
}  // namespace trireme::cli
