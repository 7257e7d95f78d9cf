// Real processes: packing that is killed or fills the disk, and data that are damaged during training.

#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/http_server.h"
#include "tests/support/paths.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/files.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::string> pack_words(const fs::path& folder, const std::string& shard_mib = "1") {
  return {bin("trireme"), "data", "pack", "synthetic", folder.string(), "--shard-mib", shard_mib};
}

class PackedData : public testing::Test {
 protected:
  ChildResult data(const std::string& action, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {bin("trireme"), "data", action, packed_.string()};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  ChildResult train(const std::string& name, const std::vector<std::string>& settings) const {
    std::vector<std::string> words = {bin("trireme"), "train", checkout("examples/quick.toml"), "-n", "2"};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    for (const std::string& setting :
         {"run.folder=" + folder_.path().string(), "run.name=" + name, std::string("comm.timeout_s=20")})
      words.insert(words.end(), {"--set", setting});
    return run(words);
  }
  ChildResult train_packed(const std::string& name) const {
    return train(name, {"data.name=packed", "data.path=" + packed_.string()});
  }

  TemporaryFolder folder_;
  const fs::path packed_ = folder_ / "packed";
};

TEST_F(PackedData, TrainingHasBitsOfOneOnSource) {
  const ChildResult packed = run(pack_words(packed_));
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_THAT(packed.out, HasSubstr("packed 5120 samples of synthetic into"));
  EXPECT_EQ(train("source", {}).exit_code, 0);
  const ChildResult result = train_packed("from_shards");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const TrainedRun expected = read_run(folder_ / "source"), found = read_run(folder_ / "from_shards");
  EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3);
  EXPECT_EQ(found.losses, expected.losses);
}

TEST_F(PackedData, ReadsPrivateRedirectionsOnRequest) {
  ASSERT_EQ(run(pack_words(packed_)).exit_code, 0);
  HttpServer server;
  for (const auto& entry : fs::directory_iterator(packed_))
    server.put(entry.path().filename().string(), {.content = read_file(entry.path())});
  server.twist([&](const HttpQuestion& question, const std::string&) -> std::optional<HttpAnswer> {
    if (!question.path.starts_with("/moved/")) return std::nullopt;
    return HttpAnswer{"HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: " +
                      server.url(question.path.substr(7)) + "\r\n\r\n"};
  });
  for (const std::string action : {"inspect", "verify"}) {
    const std::vector<std::string> words = {bin("trireme"), "data", action, server.url("moved")};
    const ChildResult rejected = run(words);
    EXPECT_EQ(rejected.exit_code, 4);
    EXPECT_THAT(rejected.err, HasSubstr("data.private_redirects = true"));
    std::vector<std::string> asked_for = words;
    asked_for.insert(asked_for.end(), {"--set", "data.private_redirects=true"});
    const ChildResult read = run(asked_for);
    EXPECT_EQ(read.exit_code, 0) << read.err;
    EXPECT_THAT(read.out, HasSubstr(action == "verify" ? "ok, 5120 records" : "train"));
  }
}

TEST_F(PackedData, DamageEndsTrainingAndFailsVerify) {
  ASSERT_EQ(run(pack_words(packed_)).exit_code, 0);
  EXPECT_EQ(data("verify").exit_code, 0);
  std::fstream shard(packed_ / "train-00003.trr", std::ios::binary | std::ios::in | std::ios::out);
  shard.seekp(5000) << "damage";
  shard.close();
  const ChildResult verdict = data("verify", {"--json"});
  EXPECT_EQ(verdict.exit_code, 4);
  const auto report = nlohmann::json::parse(verdict.out);
  EXPECT_EQ(report["ok"], false);
  ASSERT_EQ(report["damaged"].size(), 1u);
  EXPECT_EQ(report["damaged"][0]["file"], "train-00003.trr");
  EXPECT_TRUE(report["damaged"][0].contains("sample"));
  const ChildResult result = train_packed("damaged");
  EXPECT_EQ(result.exit_code, 4) << result.out;
  EXPECT_THAT(result.err, AllOf(HasSubstr("train-00003.trr"), HasSubstr("sample"), HasSubstr("offset")));
}

TEST_F(PackedData, KilledPackingLeavesFolderMarkedIncomplete) {
  ChildProcess packing(pack_words(packed_, "0.01"));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!fs::exists(packed_ / "train-00005.trr") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  packing.send_signal(SIGKILL);
  packing.wait(60);
  ASSERT_TRUE(fs::exists(packed_ / "train-00005.trr"));
  for (const std::string action : {"inspect", "verify"}) {
    const ChildResult result = data(action);
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_THAT(result.err, AllOf(HasSubstr("not completed"), HasSubstr("--force")));
  }
  EXPECT_EQ(train_packed("half").exit_code, 4);
  EXPECT_EQ(run(pack_words(packed_)).exit_code, 2) << "not without --force";
  std::vector<std::string> again = pack_words(packed_);
  again.push_back("--force");
  EXPECT_EQ(run(again).exit_code, 0);
  EXPECT_EQ(data("verify").exit_code, 0);
}

TEST_F(PackedData, FullDiskIsNamedAndLeavesNothing) {
  const std::string reason = small_disk_unavailable_because();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const TemporaryFolder disk, kept;
  const ChildResult result = run(
      on_small_disk({.size = "3m", .folder = disk.path(), .keep = kept.path()}, pack_words(disk / "packed")));
  EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("packed/train-0000"), HasSubstr("No space left on device")));
  EXPECT_FALSE(fs::exists(kept / "packed"));
}

}  // namespace
}  // namespace trireme::test
