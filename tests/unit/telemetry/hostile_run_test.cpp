// Untrusted folders of runs, which `trireme runs` lists.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/cpu_limit.h"
#include "tests/support/memory_limit.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/telemetry/jsonl_sink.h"
#include "trireme/telemetry/run_data.h"
#include "trireme/telemetry/tensorboard_sink.h"

namespace trireme::telemetry {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

class SecurityRunReading : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  std::string error_of(Metrics metrics) const {
    try {
      read_run(folder_.path(), metrics);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }
  /// `begin`, followed by very many keys.
  static std::string object_of_many_keys(std::string begin) {
    for (int i = 0; i < 300'000; ++i) begin += ",\"" + std::to_string(i) + "\":1";
    return begin + "}\n";
  }

  const test::TemporaryFolder folder_;
};

TEST_F(SecurityRunReading, LinesOfManyKeysTakeLinearTime) {
  write("metrics.jsonl", object_of_many_keys("{\"event\":\"evaluation\",\"step\":1") + "{\"step\":2}\n");
  const auto read = [&] {
    test::limit_cpu_time(30);
    const bool is_error =
        error_of(Metrics::kAll).find("metrics.jsonl:1: expected a JSON object") != std::string::npos;
    std::_Exit(is_error && read_run(folder_.path(), Metrics::kEnd).steps == 2 ? 0 : 1);
  };
  EXPECT_EXIT(read(), testing::ExitedWithCode(0), "");
}

TEST_F(SecurityRunReading, SummariesOfVeryManyKeysAreErrors) {
  write("summary.json", object_of_many_keys("{\"status\":\"completed\""));
  EXPECT_THAT(error_of(Metrics::kEnd), HasSubstr("expected one JSON object: it has more than 20000 values"));
  write("summary.json", std::string(1 << 20, '['));
  EXPECT_THAT(error_of(Metrics::kEnd), HasSubstr("levels deep"));
}

TEST_F(SecurityRunReading, EmptyLinesTakeNoMemory) {
  write("metrics.jsonl", std::string(64 << 20, '\n') + "{\"step\":3}\n");
  const test::MemoryLimit limit(std::uint64_t{256} << 20);
  EXPECT_EQ(read_run(folder_.path()).steps, 3);
}

TEST_F(SecurityRunReading, ALineWithoutEndIsAnError) {
  write("metrics.jsonl", "{\"event\":\"evaluation\",\"loss\":1,\"step\":1}\n");
  std::filesystem::resize_file(folder_ / "metrics.jsonl", std::uint64_t{1} << 34);
  EXPECT_THAT(error_of(Metrics::kEnd), HasSubstr("a line of more than 16777216 bytes"));
}

TEST_F(SecurityRunReading, ConfigurationsHaveALimitOfSize) {
  write("config.toml", "a = 1\n");
  std::filesystem::resize_file(folder_ / "config.toml", std::uint64_t{1} << 34);
  EXPECT_THAT(error_of(Metrics::kEnd), HasSubstr("and at most 4194304"));
}

TEST_F(SecurityRunReading, AFileWithoutEndIsAnError) {
  write("config.toml", "a = 1\n");
  for (const Metrics metrics : {Metrics::kAll, Metrics::kEnd}) {
    for (const char* name : {"config.toml", "metrics.jsonl", "summary.json", "end.json"}) {
      const std::filesystem::path path = folder_ / name, before = folder_ / "before";
      const bool was_there = std::filesystem::exists(path);
      if (was_there) std::filesystem::rename(path, before);
      std::filesystem::create_symlink("/dev/zero", path);
      const test::MemoryLimit limit(std::uint64_t{256} << 20);
      EXPECT_THAT(error_of(metrics), AllOf(HasSubstr(name), HasSubstr("no regular file")));
      std::filesystem::remove(path);
      if (was_there) std::filesystem::rename(before, path);
    }
  }
}

TEST_F(SecurityRunReading, EndsAndSummariesHaveSizeLimit) {
  write("config.toml", "a = 1\n");
  for (const char* name : {"end.json", "summary.json", "run.lock"}) {
    write(name, "{}");
    std::filesystem::resize_file(folder_ / name, std::uint64_t{1} << 34);
    EXPECT_THAT(error_of(Metrics::kEnd), AllOf(HasSubstr(name), HasSubstr("and at most")));
    std::filesystem::remove(folder_ / name);
  }
}

TEST_F(SecurityRunReading, ResumeHasSizeLimit) {
  write("metrics.jsonl", "{}\n");
  write("events.out.tfevents.1.trireme", "");
  for (const char* name : {"metrics.jsonl", "events.out.tfevents.1.trireme"})
    std::filesystem::resize_file(folder_ / name, std::uint64_t{1} << 34);
  const test::MemoryLimit limit(std::uint64_t{256} << 20);
  EXPECT_THAT([&] { drop_lines_after(folder_ / "metrics.jsonl", 1); },
              ThrowsMessage<DataError>(HasSubstr("and at most 1073741824 are read")));
  EXPECT_THAT([&] { drop_events_after(folder_.path(), 1); },
              ThrowsMessage<DataError>(HasSubstr("and at most 1073741824 are read")));
}

TEST_F(SecurityRunReading, LinesThatAreQuotedAreEscaped) {
  write("metrics.jsonl", "\x1b[2J\n");
  EXPECT_THAT(error_of(Metrics::kAll), AllOf(HasSubstr("found '\\x1b[2J'"), Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace trireme::telemetry
