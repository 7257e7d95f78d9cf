// A run's folder that another user has filled, or may write to. No file outside of it is written.

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

#include "tests/support/memory_limit.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/telemetry/run_end.h"
#include "trireme/train/run/run_folder.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

class SecurityRunFolder : public SmallRuns {
 protected:
  SecurityRunFolder() { write_file_atomic(victim_, kVictims); }

  RunConfig longer() const {
    RunConfig config = this->config("a");
    config.train.max_steps = 18;
    config.checkpoint.best = "loss";
    config.run.trace = "trace.json";
    config.run.timeline = "timeline.html";
    config.run.tensorboard = true;
    return config;
  }
  /// A run of 12 steps. Afterwards a link replaces `name` in its folder.
  void plant(const std::string& name, const fs::path& target) const {
    RunConfig config = longer();
    config.train.max_steps = 12;
    run(1, config);
    fs::remove_all(folder_ / "a" / name);
    fs::create_symlink(target, folder_ / "a" / name);
  }
  void expect_untouched() const {
    EXPECT_FALSE(fs::is_symlink(victim_));
    EXPECT_EQ(read_file(victim_), kVictims);
  }
  /// Whether the resumed run reached its end. Otherwise the error names the link.
  bool resumes() const {
    try {
      return run(1, longer(), RunStart::kResume).status == "completed";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("symbolic link"));
      return false;
    }
  }

  static constexpr const char* kVictims = "ssh-ed25519 AAAA somebody\n";
  const fs::path victim_ = folder_ / "authorized_keys";
};

TEST_F(SecurityRunFolder, LinkForFileIsReplacedOrRejected) {
  // Files that are written as a whole are replaced. Links at files that are locked or appended to are
  // rejected.
  const std::map<std::string, bool> goes_on = {
      {"run.lock", false},         {"console.log", false},  {"metrics.jsonl", true}, {"summary.json", true},
      {"end.json", true},          {"config.toml", true},   {"report.html", true},   {"trace.json", true},
      {"model.safetensors", true}, {"timeline.html", true}, {"goodput.json", true}};
  for (const auto& [name, expected] : goes_on) {
    SCOPED_TRACE(name);
    plant(name, victim_);
    EXPECT_EQ(resumes(), expected);
    expect_untouched();
    fs::remove(folder_ / "a/run.lock");
    fs::remove_all(folder_ / "a");
  }
}

TEST_F(SecurityRunFolder, DanglingLinkCreatesNoFile) {
  plant("console.log", folder_ / "made");
  EXPECT_FALSE(resumes());
  EXPECT_FALSE(fs::exists(folder_ / "made"));
}

TEST_F(SecurityRunFolder, RejectsLinkForFolderOfRun) {
  for (const char* name : {"checkpoints", "best", "tensorboard"}) {
    SCOPED_TRACE(name);
    plant(name, folder_ / "elsewhere");
    fs::create_directories(folder_ / "elsewhere");
    EXPECT_THAT([&] { run(1, longer(), RunStart::kResume); },
                ThrowsMessage<Error>(HasSubstr(std::string(name) + " is a symbolic link")));
    EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere"));
    fs::remove_all(folder_ / "a");
  }
}

TEST_F(SecurityRunFolder, WritesNoTraceThroughLink) {
  RunConfig config = this->config("a");
  config.run.trace = "traces/one/trace.json";
  EXPECT_EQ(run(1, config).status, "completed");
  EXPECT_TRUE(fs::exists(folder_ / "a/traces/one/trace.json")) << "folders are made";
  fs::remove_all(folder_ / "a/traces");
  fs::create_directories(folder_ / "elsewhere/one");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "a/traces");
  config.train.max_steps = 18;
  EXPECT_EQ(run(1, config, RunStart::kResume).status, "completed") << "a run does not fail for its trace";
  EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere/one"));
}

TEST_F(SecurityRunFolder, FolderOfRunsMayBeLink) {
  fs::create_directories(folder_ / "disk");
  fs::create_directory_symlink(folder_ / "disk", folder_ / "runs");
  RunConfig config = this->config("a");
  config.run.folder = (folder_ / "runs").string();
  EXPECT_EQ(run(1, config).status, "completed");
  config.train.max_steps = 18;
  EXPECT_EQ(run(1, config, RunStart::kResume).status, "completed");
  EXPECT_TRUE(fs::exists(folder_ / "disk/a/summary.json"));
}

TEST_F(SecurityRunFolder, FolderOfRunMayBeLink) {
  fs::create_directories(folder_ / "disk/moved");
  fs::create_directory_symlink(folder_ / "disk/moved", folder_ / "a");
  EXPECT_EQ(run(1, config("a")).status, "completed");
  EXPECT_TRUE(fs::exists(folder_ / "disk/moved/summary.json"));
}

TEST_F(SecurityRunFolder, ForeignFolderIsNotMovedAside) {
  fs::create_directories(folder_ / "a");
  write_file_atomic(folder_ / "a/authorized_keys", kVictims);
  EXPECT_THAT([&] { run(1, config("a")); }, ThrowsMessage<InvalidArgument>(HasSubstr("is not empty")));
  EXPECT_EQ(file("a", "authorized_keys"), kVictims);
  EXPECT_FALSE(fs::exists(folder_ / "a/run.lock"));
}

TEST_F(SecurityRunFolder, RejectsLockBeyondItsLimit) {
  run(1, config("a"));
  write_file_atomic(folder_ / "a/run.lock", "{}");
  fs::resize_file(folder_ / "a/run.lock", std::uint64_t{1} << 34);
  const test::MemoryLimit limit(std::uint64_t{4} << 30);
  EXPECT_THAT([&] { run(1, longer(), RunStart::kResume); },
              ThrowsMessage<DataError>(HasSubstr("is not a lock of a run")));
}

TEST_F(SecurityRunFolder, RejectsFifoWithoutWaiting) {
  run(1, config("a"));
  fs::remove(folder_ / "a/run.lock");
  ASSERT_EQ(::mkfifo((folder_ / "a/run.lock").c_str(), 0666), 0);
  EXPECT_THAT([&] { run(1, longer(), RunStart::kResume); }, ThrowsMessage<DataError>(HasSubstr("FIFO")));
  EXPECT_EQ(telemetry::holder_of(folder_ / "a/run.lock").who, "");
}

}  // namespace
}  // namespace trireme::train
