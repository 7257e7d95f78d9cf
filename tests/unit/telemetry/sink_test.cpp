#include "trireme/telemetry/sink.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <sstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/telemetry/append_stream.h"
#include "trireme/telemetry/console_sink.h"
#include "trireme/telemetry/jsonl_sink.h"
#include "trireme/telemetry/run_summary.h"

namespace trireme::telemetry {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

Record step_record(std::int64_t step) {
  return {
      .event = "step",
      .fields = {{"step", step}, {"loss", 0.5}, {"samples_per_s", 1000.4}, {"lr", 0.05}, {"step_s", 0.1}}};
}

TEST(RecordAsJson, KeepsTheOrderAndTheEventFirst) {
  EXPECT_EQ(to_json_line({"eval", {{"step", std::int64_t{7}}, {"test_accuracy", 0.25}, {"who", "a\"b"}}}),
            R"({"event":"eval","step":7,"test_accuracy":0.25,"who":"a\"b"})");
}

TEST(RecordAsJson, NumbersThatAreNotFiniteBecomeNull) {
  EXPECT_EQ(to_json_line({"step", {{"loss", std::numeric_limits<double>::quiet_NaN()}}}),
            R"({"event":"step","loss":null})");
}

TEST(JsonlSink, AppendsOneLinePerRecord) {
  const test::TemporaryFolder folder;
  JsonlSink(folder / "m.jsonl").write(step_record(1));
  JsonlSink(folder / "m.jsonl").write(step_record(2));
  const std::string content = read_file(folder / "m.jsonl");
  EXPECT_EQ(std::count(content.begin(), content.end(), '\n'), 2);
  EXPECT_THAT(content, HasSubstr("\"step\":2"));
}

TEST(JsonlSink, MissingFolderIsADataError) { EXPECT_THROW(JsonlSink("/nowhere/at/all/m.jsonl"), DataError); }

TEST(JsonlSink, FullDiskIsADataError) {
  EXPECT_THROW(JsonlSink("/dev/full").write(step_record(1)), DataError);
}

TEST(DropLinesAfter, KeepsLinesBeforeResume) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "m.jsonl", "{\"step\":1}\n{\"step\":3}\n{\"step\":2}\n{\"st");
  drop_lines_after(folder / "m.jsonl", 2);
  EXPECT_EQ(read_file(folder / "m.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_NO_THROW(drop_lines_after(folder / "absent.jsonl", 2));
}

TEST(DropLinesAfter, DropsLinesThatAreNoSteps) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "m.jsonl",
                    "{\"step\":1}\n{\"step\":\"x\"}\n[1]\n{\"step\":null}\n{\"step\":1e300}\n{\"step\":2}\n");
  drop_lines_after(folder / "m.jsonl", 2);
  EXPECT_EQ(read_file(folder / "m.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(ConsoleSink, PlainLinesAreThinnedButLastShown) {
  std::ostringstream out;
  {
    ConsoleSink sink(out, {.style = ConsoleStyle::kPlain, .total_steps = 3, .plain_s = 1000});
    for (std::int64_t step = 1; step <= 3; ++step) sink.write(step_record(step));
  }
  EXPECT_EQ(out.str(),
            "step 1/3  loss 0.5000  1000 samples/s  eta 200 ms  lr 0.05\n"
            "step 3/3  loss 0.5000  1000 samples/s  lr 0.05\n");
}

TEST(ConsoleSink, BarIsRedrawnAndFinallyCleared) {
  std::ostringstream out;
  {
    ConsoleSink sink(out,
                     {.style = ConsoleStyle::kTerminal, .total_steps = 2, .columns = 120, .redraw_s = 0});
    sink.write(step_record(1));
    sink.write(step_record(2));
    EXPECT_THAT(out.str(), EndsWith("\r"));
  }
  EXPECT_THAT(out.str(), Not(HasSubstr("\n")));
  EXPECT_THAT(out.str(), StartsWith("\x1b[K[============            ] step 1/2"));
  EXPECT_THAT(out.str(), EndsWith("\r\x1b[K"));
}

/// The progress bar of a step with all values, without its control codes.
std::string bar_of(int columns) {
  std::ostringstream out;
  ConsoleSink sink(out, {.style = ConsoleStyle::kTerminal, .total_steps = 200000, .columns = columns});
  Record record = step_record(100000);
  record.fields.insert(
      record.fields.end(),
      {{"grad_norm", 2.3125}, {"loss_scale", 65536.0}, {"data_wait", 0.014}, {"comm_wait", 0.117}});
  sink.write(record);
  return out.str().substr(3, out.str().size() - 4);
}

TEST(ConsoleSink, AWideTerminalShowsEverything) {
  EXPECT_EQ(
      bar_of(160),
      "[============            ] step 100000/200000  loss 0.5000  1000 samples/s  eta 2h 46m  lr 0.05  "
      "data 1% comm 12%  norm 2.31  scale 65536");
}

TEST(ConsoleSink, NamesRankThatWaitsForData) {
  const auto line_of = [](std::vector<std::pair<std::string, FieldValue>> fields) {
    std::ostringstream out;
    ConsoleSink sink(out, {.style = ConsoleStyle::kPlain, .total_steps = 2});
    Record record = step_record(1);
    record.fields.insert(record.fields.end(), fields.begin(), fields.end());
    sink.write(record);
    return out.str().substr(out.str().find("data"));
  };
  EXPECT_EQ(line_of({{"data_wait", 0.001},
                     {"data_wait_most", 0.34},
                     {"data_wait_rank", std::int64_t{1}},
                     {"data_wait_stage", std::string("read")},
                     {"comm_wait", 0.5}}),
            "data 0% (rank 1: 34%, read) comm 50%\n");
  EXPECT_EQ(line_of({{"data_wait", 0.34},
                     {"data_wait_most", 0.34},
                     {"data_wait_rank", std::int64_t{0}},
                     {"data_wait_stage", std::string("decode")},
                     {"comm_wait", 0.0}}),
            "data 34% (decode) comm 0%\n");
  EXPECT_EQ(line_of({{"data_wait", 0.001},
                     {"data_wait_most", 0.009},
                     {"data_wait_rank", std::int64_t{3}},
                     {"comm_wait", 0.0}}),
            "data 0% comm 0%\n");
}

TEST(ConsoleSink, ShowsMeanGpuUtilizationAndMostMemory) {
  const auto line_of = [](std::vector<std::pair<std::string, FieldValue>> fields) {
    std::ostringstream out;
    ConsoleSink sink(out, {.style = ConsoleStyle::kPlain, .total_steps = 2});
    Record record = step_record(1);
    record.fields.insert(record.fields.end(), fields.begin(), fields.end());
    sink.write(record);
    return out.str();
  };
  EXPECT_THAT(line_of({{"gpu_0_utilization", 0.87}, {"gpu_0_memory_used_bytes", std::int64_t{12} << 30}}),
              EndsWith("lr 0.05  gpu 87% 12.0 GiB\n"));
  EXPECT_THAT(line_of({{"gpu_0_utilization", 0.87},
                       {"gpu_0_memory_used_bytes", std::int64_t{1} << 30},
                       {"gpu_1_memory_used_bytes", std::int64_t{3} << 30},
                       {"gpu_2_utilization", 0.13}}),
              EndsWith("lr 0.05  gpu 50% 3.0 GiB\n"));
  EXPECT_THAT(line_of({}), Not(HasSubstr("gpu")));
}

TEST(ConsoleSink, NarrowTerminalLosesBarThenDetails) {
  EXPECT_EQ(bar_of(110),
            "[====     ] step 100000/200000  loss 0.5000  1000 samples/s  eta 2h 46m  lr 0.05  "
            "data 1% comm 12%  norm 2.31");
  EXPECT_EQ(bar_of(80), "[====    ] step 100000/200000  loss 0.5000  1000 samples/s  eta 2h 46m  lr 0.05");
  EXPECT_EQ(bar_of(0), bar_of(80)) << "an unknown width is that of most terminals";
  EXPECT_EQ(bar_of(20), "step 100000/200000") << "no room for a bar";
  EXPECT_EQ(bar_of(18), "") << "a part of a number would be another one";
  for (int columns = 1; columns < 160; ++columns) {
    EXPECT_LT(bar_of(columns).size(), static_cast<std::size_t>(columns));
  }
}

TEST(ConsoleSink, PlainLinesShowEverythingThatIsKnown) {
  std::ostringstream out;
  ConsoleSink sink(out, {.style = ConsoleStyle::kPlain, .total_steps = 2});
  Record record = step_record(1);
  record.fields.emplace_back("loss_scale", 1024.0);
  record.fields.emplace_back("grad_norm", 0.5);
  sink.write(record);
  EXPECT_EQ(out.str(), "step 1/2  loss 0.5000  1000 samples/s  eta 100 ms  lr 0.05  norm 0.5  scale 1024\n");
}

TEST(ColumnsOfStdout, DefaultToThoseOfLauncher) {
  if (::isatty(STDOUT_FILENO) == 1) GTEST_SKIP() << "standard output is a terminal here";
  ::setenv("TRIREME_TERMINAL", "96", 1);
  EXPECT_EQ(columns_of_stdout(), 96);
  ::setenv("TRIREME_TERMINAL", "1", 1);
  EXPECT_EQ(columns_of_stdout(), 0) << "a launcher that does not know the width";
  ::unsetenv("TRIREME_TERMINAL");
  EXPECT_EQ(columns_of_stdout(), 0);
}

TEST(ConsoleSink, EvaluationClearsBarAndTakesLine) {
  std::ostringstream out;
  ConsoleSink sink(out, {.style = ConsoleStyle::kTerminal, .total_steps = 2});
  sink.write(step_record(1));
  sink.write({"eval", {{"step", std::int64_t{1}}, {"test_accuracy", 0.9}, {"test_loss", 0.3}}});
  EXPECT_THAT(out.str(), EndsWith("\r\x1b[Kstep 1  test accuracy 0.9000  test loss 0.3000\n"));
  sink.write({"eval", {{"step", std::int64_t{2}}, {"test_loss", -std::numeric_limits<double>::quiet_NaN()}}});
  EXPECT_THAT(out.str(), EndsWith("step 2  test loss nan\n"));
}

// The text of a line may come from an untrusted configuration or folder.
TEST(SecurityConsole, ControlCharactersOfALineAreEscaped) {
  std::ostringstream out;
  ConsoleSink sink(out, {});
  sink.write({"note", {{"text", std::string("into runs/\x1b[2Jevil\r")}}});
  EXPECT_THAT(out.str(), HasSubstr("into runs/\\x1b[2Jevil\\r\n"));
}

TEST(AppendStream, FlushedDataFollowExistingData) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "log", "before\n");
  AppendStream log(folder / "log");
  log << "one " << 1 << std::flush;
  EXPECT_EQ(read_file(folder / "log"), "before\none 1");
  log << '\n' << "two" << std::endl;
  EXPECT_EQ(read_file(folder / "log"), "before\none 1\ntwo\n");
}

TEST(AppendStream, FullDiskIsStateOfStream) {
  AppendStream log("/dev/full");
  log << "lost" << std::flush;
  EXPECT_FALSE(log);
}

TEST(SecurityAppendedFiles, ASymbolicLinkIsNotFollowed) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "victim", "not to be touched");
  std::filesystem::create_symlink(folder / "victim", folder / "link");
  EXPECT_THAT([&] { AppendStream log(folder / "link"); },
              testing::ThrowsMessage<DataError>(HasSubstr("symbolic link")));
  EXPECT_THAT([&] { JsonlSink sink(folder / "link"); },
              testing::ThrowsMessage<DataError>(HasSubstr("symbolic link")));
  EXPECT_EQ(read_file(folder / "victim"), "not to be touched");
}

TEST(RunSummary, IsAnIndentedObjectWithoutTheEvent) {
  const test::TemporaryFolder folder;
  write_summary(folder / "summary.json", {"end", {{"status", "completed"}, {"steps", std::int64_t{3}}}});
  EXPECT_EQ(read_file(folder / "summary.json"), "{\n  \"status\": \"completed\",\n  \"steps\": 3\n}\n");
}

}  // namespace
}  // namespace trireme::telemetry
