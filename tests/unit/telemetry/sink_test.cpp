#include "trireme/telemetry/sink.h"

#include <gmock/gmock.h>

#include <limits>
#include <sstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
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

TEST(DropLinesAfter, KeepsWhatAResumedRunDoesNotWriteAgain) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "m.jsonl", "{\"step\":1}\n{\"step\":3}\n{\"step\":2}\n{\"st");
  drop_lines_after(folder / "m.jsonl", 2);
  EXPECT_EQ(read_file(folder / "m.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_NO_THROW(drop_lines_after(folder / "absent.jsonl", 2));
}

TEST(ConsoleSink, PlainLinesAreThinnedButTheLastIsShown) {
  std::ostringstream out;
  {
    ConsoleSink sink(out, {.style = ConsoleStyle::kPlain, .total_steps = 3, .plain_s = 1000});
    for (std::int64_t step = 1; step <= 3; ++step) sink.write(step_record(step));
  }
  EXPECT_EQ(out.str(),
            "step 1/3  loss 0.5000  1000 samples/s  lr 0.05  eta 200 ms\n"
            "step 3/3  loss 0.5000  1000 samples/s  lr 0.05\n");
}

TEST(ConsoleSink, BarIsRedrawnInPlaceAndClearedAtTheEnd) {
  std::ostringstream out;
  {
    ConsoleSink sink(out, {.style = ConsoleStyle::kTerminal, .total_steps = 2, .redraw_s = 0});
    sink.write(step_record(1));
    sink.write(step_record(2));
    EXPECT_THAT(out.str(), EndsWith("\r"));
  }
  EXPECT_THAT(out.str(), Not(HasSubstr("\n")));
  EXPECT_THAT(out.str(), StartsWith("\x1b[K[============            ] step 1/2"));
  EXPECT_THAT(out.str(), EndsWith("\r\x1b[K"));
}

TEST(ConsoleSink, BarFitsIntoTheTerminal) {
  std::ostringstream out;
  ConsoleSink sink(out, {.style = ConsoleStyle::kTerminal, .total_steps = 2, .columns = 30});
  sink.write(step_record(1));
  EXPECT_EQ(out.str(), "\x1b[K[============            ] st\r");
}

TEST(ConsoleSink, EvaluationClearsTheBarAndTakesALine) {
  std::ostringstream out;
  ConsoleSink sink(out, {.style = ConsoleStyle::kTerminal, .total_steps = 2});
  sink.write(step_record(1));
  sink.write({"eval", {{"step", std::int64_t{1}}, {"test_accuracy", 0.9}, {"test_loss", 0.3}}});
  EXPECT_THAT(out.str(), EndsWith("\r\x1b[Kstep 1  test accuracy 0.9000  test loss 0.3000\n"));
}

TEST(RunSummary, IsAnIndentedObjectWithoutTheEvent) {
  const test::TemporaryFolder folder;
  write_summary(folder / "summary.json", {"end", {{"status", "completed"}, {"steps", std::int64_t{3}}}});
  EXPECT_EQ(read_file(folder / "summary.json"), "{\n  \"status\": \"completed\",\n  \"steps\": 3\n}\n");
}

}  // namespace
}  // namespace trireme::telemetry
