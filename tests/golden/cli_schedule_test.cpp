// Output of `trireme schedule` and `trireme simulate`: exact text or numbers.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/golden/golden_text.h"
#include "tests/golden/known_schedules.h"
#include "tests/support/child_process.h"
#include "tests/support/paths.h"

namespace trireme::test {
namespace {

ChildResult trireme(std::vector<std::string> words) {
  words.insert(words.begin(), bin("trireme"));
  return run(words);
}

/// A user-defined program in a file, which is removed at the end of the test.
class File {
 public:
  explicit File(const std::string& content)
      : path_(testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() +
              ".csv") {
    std::ofstream(path_) << content;
  }
  ~File() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(CliSchedule, HelpAndListAreTheGoldenTexts) {
  EXPECT_EQ(trireme({"schedule", "--help"}).out, golden("help_schedule"));
  EXPECT_EQ(trireme({"simulate", "--help"}).out, golden("help_simulate"));
  EXPECT_EQ(trireme({"schedule"}).out, golden("schedule_list"));
}

TEST(CliSchedule, NamesMissingOptions) {
  EXPECT_EQ(trireme({"schedule", "1f1b"}).err,
            "trireme: error: schedule '1f1b' needs --ranks and --microbatches\n");
  EXPECT_EQ(trireme({"schedule", "1f1", "--ranks", "2", "--microbatches", "2"}).err,
            "trireme: error: unknown schedule '1f1' (did you mean '1f1b'?)\n");
}

TEST(CliSchedule, PrintsTheKnownTransfers) {
  for (const schedule::KnownProgram& known : schedule::known_programs()) {
    if (known.content != "transfers" || known.options.num_ranks != 2) continue;
    const auto result = trireme({"schedule", known.schedule, "--ranks", "2", "--microbatches", "4", "--comms",
                                 "--format", "csv", "--chunks", std::to_string(known.options.num_chunks)});
    EXPECT_EQ(result.out, known.csv) << known.title << result.err;
  }
}

TEST(CliSchedule, PrintsTableJsonAndSvg) {
  const std::vector<std::string> words = {"schedule", "1f1b", "--ranks", "2", "--microbatches", "2"};
  const auto in = [&](const std::string& format) {
    auto with_format = words;
    with_format.insert(with_format.end(), {"--format", format});
    return trireme(with_format).out;
  };
  EXPECT_EQ(in("table"), "rank 0  0F0 0F1 0B0 0B1\nrank 1  1F0 1B0 1F1 1B1\n");
  const auto json = nlohmann::json::parse(in("json"));
  EXPECT_EQ(json["stages"], 2);
  EXPECT_EQ(json["ranks"][1], (std::vector<std::string>{"1F0", "1B0", "1F1", "1B1"}));
  EXPECT_EQ(in("svg").substr(0, 5), "<svg ");
  EXPECT_EQ(in("pdf"), "");
}

TEST(CliSchedule, ChecksAProgramOfTheUsersOwn) {
  const File sound("# two stages\n0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n");
  const auto accepted = trireme({"schedule", "--check", sound.path()});
  EXPECT_EQ(accepted.exit_code, 0) << accepted.err;
  EXPECT_EQ(accepted.out, sound.path() + ": sound: 2 ranks, 2 stages, 2 micro-batches, computations alone\n");
}

TEST(CliSchedule, SaysThatProgramWithoutFlushHasUpdates) {
  const File program("0F0,0B0,0REDUCE_GRAD,0STEP,0F1,0B1,0REDUCE_GRAD,0STEP\n");
  const auto accepted = trireme({"schedule", "--check", program.path(), "--update-every", "1"});
  EXPECT_EQ(accepted.out,
            program.path() + ": sound: 1 ranks, 1 stages, 2 micro-batches, computations and updates\n");
}

TEST(CliSchedule, NotesActionsThatRunsDoNotSupport) {
  const File gathers("0F0,0F1,0B0,0B1\n,1UNSHARD,1F0,1B0,1F1,1B1,1RESHARD\n");
  const auto noted = trireme({"schedule", "--check", gathers.path()});
  EXPECT_EQ(noted.exit_code, 0) << noted.err;
  EXPECT_NE(noted.out.find("sound"), std::string::npos) << noted.out;
  EXPECT_NE(noted.out.find("\nnote: a run rejects it: rank 1, position 1, 1UNSHARD: "), std::string::npos)
      << noted.out;
  const File recomputes("0F0,0RECOMPUTE0,0B0\n1F0,1B0\n");
  const auto needs = trireme({"schedule", "--check", recomputes.path()});
  EXPECT_NE(needs.out.find("0RECOMPUTE0: "), std::string::npos) << needs.out;
  EXPECT_NE(needs.out.find("unless parallel.recompute = true"), std::string::npos) << needs.out;
}

TEST(CliSchedule, NamesRankPositionAndActionOfErrors) {
  const File wrong("0F0,0B0,0F1,0B1\n1F0,1B0,1B1,1F1\n");
  const auto refused = trireme({"schedule", "--check", wrong.path()});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err, "trireme: error: program '" + wrong.path() +
                             "': rank 1, position 2, 1B1: backward before the micro-batch's forward\n");
}

TEST(CliSchedule, NamesTransportThatDeadlocksProgram) {
  const File program(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_EQ(trireme({"schedule", "--check", program.path()}).exit_code, 0);
  const auto refused = trireme({"schedule", "--check", program.path(), "--transport", "rendezvous"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("0SEND_F1: deadlock with transport 'rendezvous'"), std::string::npos)
      << refused.err;
}

TEST(CliSimulate, GivesTheFiguresAsJson) {
  const auto result = trireme({"simulate", "--schedule", "zb-2p", "--ranks", "8", "--microbatches", "24",
                               "--forward", "18522", "--backward-input", "18086", "--backward-weight", "9337",
                               "--hop", "601", "--memory-limit", "16", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_LE(json["bubble_rate"].get<double>(), 0.04335);  // 0.0433 in table 5 of arXiv 2401.10241
  EXPECT_GE(json["cost"].get<double>(), 24 * (18522 + 18086 + 9337));
  ASSERT_EQ(json["peak_activations"].size(), 8U);
  for (const auto& peak : json["peak_activations"]) EXPECT_LE(peak.get<double>(), 16 + 1e-9);
}

TEST(CliSimulate, RejectsAnOrderThatNeedsMoreMemory) {
  const auto result = trireme(
      {"simulate", "--schedule", "gpipe", "--ranks", "2", "--microbatches", "8", "--memory-limit", "4"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("rank 0 holds 8 activations, over --memory-limit 4"), std::string::npos)
      << result.err;
}

}  // namespace
}  // namespace trireme::test
