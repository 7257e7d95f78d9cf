#include "trireme/checkpoint/training_checkpoint.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/latest.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/consolidate.h"
#include "trireme/checkpoint/internal/manifest.h"
#include "trireme/checkpoint/internal/xxh3.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

TrainingCheckpoint checkpoint_of(std::int64_t step) {
  return {.step = step,
          .epoch = 2,
          .batch = 7,
          .model = {{"w", at::full({4}, static_cast<double>(step))}},
          .optimizer = {{"momentum/w", at::full({4}, 0.5)}},
          .config = "run.name = \"x\"\n"};
}

void flip_a_byte(const fs::path& path) {
  std::string bytes = read_file(path);
  bytes[bytes.size() - 3] ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

/// The step of the latest valid checkpoint, or -1. Messages are written to `warnings`.
std::int64_t latest(const fs::path& folder, std::string* warnings = nullptr) {
  testing::internal::CaptureStderr();
  const auto found = load_latest(folder);
  const std::string said = testing::internal::GetCapturedStderr();
  if (warnings != nullptr) *warnings = said;
  return found ? found->step : -1;
}

TEST(TrainingCheckpoint, ComesBackAsItWas) {
  const TemporaryFolder folder;
  const fs::path saved = save_checkpoint(folder / "checkpoints", checkpoint_of(120), 3);
  EXPECT_EQ(saved, folder / "checkpoints" / "step-00000120");
  const TrainingCheckpoint loaded = load_checkpoint(saved);
  const TrainingCheckpoint expected = checkpoint_of(120);
  EXPECT_EQ(loaded.step, 120);
  EXPECT_EQ(loaded.epoch, 2U);
  EXPECT_EQ(loaded.batch, 7);
  EXPECT_EQ(loaded.config, expected.config);
  EXPECT_EQ(xxh3_of(loaded.model), xxh3_of(expected.model));
  EXPECT_EQ(xxh3_of(loaded.optimizer), xxh3_of(expected.optimizer));
}

TEST(TrainingCheckpoint, KeepsTheNewestOnes) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {5, 20, 30, 40}) save_checkpoint(folder.path(), checkpoint_of(step), 0);
  save_checkpoint(folder.path(), checkpoint_of(100000000), 2);
  EXPECT_THAT(names_in(folder.path()), testing::UnorderedElementsAre("step-00000040", "step-100000000"));
  EXPECT_EQ(latest(folder.path()), 100000000);
}

TEST(TrainingCheckpoint, RewoundRunVoidsLaterCheckpoints) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {10, 20}) save_checkpoint(folder.path(), checkpoint_of(step), 0);
  save_checkpoint(folder.path(), checkpoint_of(15), 1);
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("step-00000015"));
}

TEST(TrainingCheckpoint, TheSameStepAgainReplacesIt) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), checkpoint_of(1), 2);
  TrainingCheckpoint other = checkpoint_of(1);
  other.epoch = 3;
  save_checkpoint(folder.path(), other, 2);
  EXPECT_EQ(load_latest(folder.path())->epoch, 3u);
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("step-00000001"));
}

TEST(TrainingCheckpoint, SkipsDamagedNewestAndSaysWhy) {
  const std::pair<const char*, void (*)(const fs::path&)> damages[] = {
      {"a flipped bit", flip_a_byte},
      {"a cut", [](const fs::path& path) { fs::resize_file(path, 3); }},
      {"a text that nests without end",
       [](const fs::path& path) {
         std::ofstream(path) << R"({"format":"trireme training checkpoint","version":3,"xxh3":)"
                             << std::string(200000, '[') << std::string(200000, ']') << '}';
       }},
      {"a loss", [](const fs::path& path) { fs::remove(path); }}};
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.toml", "manifest.json"}) {
    for (const auto& [name, damage] : damages) {
      SCOPED_TRACE(text(name, " of ", file));
      const TemporaryFolder folder;
      save_checkpoint(folder.path(), checkpoint_of(1), 0);
      damage(save_checkpoint(folder.path(), checkpoint_of(2), 0) / file);
      std::string warnings;
      EXPECT_EQ(latest(folder.path(), &warnings), 1);
      EXPECT_THAT(warnings, AllOf(HasSubstr("step-00000002"), HasSubstr(file)));
    }
  }
}

/// Replaces one text in a checkpoint's manifest. The checksum stays that of the original.
void edit_manifest(const fs::path& checkpoint, const std::string& what, const std::string& by) {
  std::string manifest = read_file(checkpoint / "manifest.json");
  const auto at = manifest.find(what);
  ASSERT_NE(at, std::string::npos) << manifest;
  manifest.replace(at, what.size(), by);
  std::ofstream(checkpoint / "manifest.json", std::ios::binary) << manifest;
}

TEST(TrainingCheckpoint, NewerFormatIsErrorAndStays) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), checkpoint_of(4), 0);
  const fs::path newest = save_checkpoint(folder.path(), checkpoint_of(6), 0);
  edit_manifest(newest, "\"version\": 3", "\"version\": 4");
  const std::string before = read_file(newest / "manifest.json");
  try {
    load_latest(folder.path());
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("step-00000006"), HasSubstr("version 4")));
  }
  EXPECT_THROW(save_checkpoint(folder.path(), checkpoint_of(6), 1), DataError)
      << "nothing is written over it";
  save_checkpoint(folder.path(), checkpoint_of(5), 1);
  EXPECT_EQ(read_file(newest / "manifest.json"), before) << "nor is it removed";
}

TEST(TrainingCheckpoint, ManifestWithoutChecksumIsError) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), checkpoint_of(1), 0);
  const fs::path newest = save_checkpoint(folder.path(), checkpoint_of(2), 0);
  std::string manifest = read_file(newest / "manifest.json");
  const auto begin = manifest.rfind(",", manifest.rfind("\"xxh3\""));
  manifest.erase(begin, manifest.rfind("}") - begin);
  std::ofstream(newest / "manifest.json", std::ios::binary) << manifest;
  EXPECT_THROW(load_latest(folder.path()), DataError);
}

TEST(TrainingCheckpoint, UnreadableOneIsErrorNotDamage) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.toml", "manifest.json"}) {
    const TemporaryFolder folder;
    save_checkpoint(folder.path(), checkpoint_of(1), 0);
    const fs::path newest = save_checkpoint(folder.path(), checkpoint_of(2), 0);
    fs::remove(newest / file);
    fs::create_symlink(file, newest / file);  // a link to itself: ELOOP for root, too
    EXPECT_THROW(load_latest(folder.path()), DataError) << file;
    EXPECT_TRUE(fs::exists(newest)) << file;
  }
}

TEST(TrainingCheckpoint, DamagedOneIsMovedAsideNotDeleted) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), checkpoint_of(10), 0);
  for (const int times : {1, 2}) {
    const fs::path later = save_checkpoint(folder.path(), checkpoint_of(20), 0);
    flip_a_byte(later / "model.safetensors");
    std::string warnings;
    EXPECT_EQ(latest(folder.path(), &warnings), 10);
    EXPECT_THAT(warnings, HasSubstr(text("step-00000020.damaged-", times)));
  }
  save_checkpoint(folder.path(), checkpoint_of(15), 1);
  EXPECT_THAT(
      names_in(folder.path()),
      testing::UnorderedElementsAre("step-00000015", "step-00000020.damaged-1", "step-00000020.damaged-2"));
}

TEST(TrainingCheckpoint, ForeignFilesAreKept) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), checkpoint_of(1), 0);
  fs::create_directory(folder / "step-00000009");
  std::ofstream(folder / "step-00000009" / "thesis.txt") << "the only copy";
  std::ofstream(folder / "step-00000008") << "a file";
  std::ofstream(folder / ".writing-diary") << "dear diary";
  std::string warnings;
  EXPECT_EQ(latest(folder.path(), &warnings), 1);
  EXPECT_THAT(warnings, HasSubstr("step-00000009"));
  save_checkpoint(folder.path(), checkpoint_of(2), 1);
  for (const std::int64_t step : {8, 9}) {
    EXPECT_THROW(save_checkpoint(folder.path(), checkpoint_of(step), 1), DataError) << step;
  }
  save_checkpoint(folder.path(), checkpoint_of(10), 1);
  EXPECT_EQ(latest(folder.path()), 10) << "after a save that failed";
  EXPECT_THAT(names_in(folder.path()), testing::UnorderedElementsAre("step-00000010", "step-00000009",
                                                                     "step-00000008", ".writing-diary"));
  EXPECT_EQ(read_file(folder / "step-00000009" / "thesis.txt"), "the only copy");
}

TEST(TrainingCheckpoint, IncompleteOneIsIgnoredAndRemovedLater) {
  const TemporaryFolder folder;
  const fs::path complete = save_checkpoint(folder.path(), checkpoint_of(1), 0);
  fs::copy(complete, folder / ".writing-step-00000009", fs::copy_options::recursive);
  fs::remove(folder / ".writing-step-00000009" / "manifest.json");
  EXPECT_EQ(latest(folder.path()), 1);
  save_checkpoint(folder.path(), checkpoint_of(2), 0);
  EXPECT_THAT(names_in(folder.path()), testing::UnorderedElementsAre("step-00000001", "step-00000002"));
}

TEST(TrainingCheckpoint, EmptyFolderHasNone) {
  const TemporaryFolder folder;
  EXPECT_EQ(latest(folder / "none"), -1);
  fs::create_directory(folder / "step-12");
  std::ofstream(folder / "step-00000012") << "a file";
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
  EXPECT_THROW(load_checkpoint(folder / "step-12"), DataError);
}

TEST(TrainingCheckpoint, ManifestOfAnotherFormatIsError) {
  const TemporaryFolder folder;
  const fs::path saved = save_checkpoint(folder.path(), checkpoint_of(1), 0);
  std::ofstream(saved / "manifest.json") << R"({"format": "other", "version": 1})";
  EXPECT_THROW(load_checkpoint(saved), DataError);
  std::ofstream(saved / "manifest.json") << "[]";
  EXPECT_THROW(load_checkpoint(saved), DataError);
}

/// Changes the manifest and corrects its checksum.
void rewrite_manifest(const fs::path& checkpoint,
                      const std::function<void(nlohmann::ordered_json&)>& change) {
  auto json = nlohmann::ordered_json::parse(read_file(checkpoint / "manifest.json"));
  json.erase("xxh3");
  change(json);
  Xxh3 hash;
  hash.add(json.dump(2));
  json["xxh3"] = hash.hex();
  std::ofstream(checkpoint / "manifest.json", std::ios::binary) << json.dump(2);
}

TEST(TrainingCheckpoint, ManifestMayNameForeignFile) {
  const TemporaryFolder folder;
  const fs::path saved = save_checkpoint(folder.path(), checkpoint_of(1), 0);
  for (const char* name : {"notes-of-today.txt", "model-of-", "a-of-99999999999"}) {
    std::ofstream(saved / name) << "x";
    rewrite_manifest(saved, [&](auto& json) {
      const FileRecord record = record_of(saved, name);
      json["files"][name] = {{"bytes", record.bytes}, {"xxh3", record.xxh3}};
    });
    EXPECT_EQ(load_checkpoint(saved).step, 1) << name;
  }
}

TEST(TrainingCheckpoint, ManifestWithFractionalNumbersIsError) {
  for (const char* key : {"step", "epoch", "batch"}) {
    for (const double number : {1.5, 1e300}) {
      const TemporaryFolder folder;
      const fs::path saved = save_checkpoint(folder.path(), checkpoint_of(1), 0);
      rewrite_manifest(saved, [&](auto& json) { json[key] = number; });
      EXPECT_THROW(load_checkpoint(saved), DataError) << key << " = " << number;
    }
  }
}

TEST(TrainingCheckpoint, OneOfTheFirstVersionIsRead) {
  const fs::path old = test::checkout("tests/unit/checkpoint/data/version-1/step-00000006");
  EXPECT_THAT(read_file(old / "manifest.json"), HasSubstr("\"version\": 1"));
  const TrainingCheckpoint loaded = load_checkpoint(old);
  EXPECT_EQ(loaded.step, 6);
  EXPECT_EQ(loaded.batch, 6);
  EXPECT_EQ(loaded.model.size(), 4u);
  EXPECT_EQ(loaded.optimizer.size(), 10u);
  EXPECT_EQ(xxh3_of(loaded.model), "c169640bbae03580");
  EXPECT_EQ(xxh3_of(loaded.optimizer), "083eca3cb17e867b");
  const TemporaryFolder folder;
  export_weights(old, folder / "weights.safetensors");
  EXPECT_EQ(xxh3_of(load_safetensors(folder / "weights.safetensors").tensors), "425b7e2b0c114c3a")
      << "weights_xxh3 of the run that wrote it";
}

TEST(TrainingCheckpoint, MidEpochOfAnotherOrderIsWarning) {
  const TemporaryFolder folder;
  const fs::path old = test::checkout("tests/unit/checkpoint/data/version-1/step-00000006");
  fs::copy(old, folder / "step-00000006");
  std::string warnings;
  EXPECT_EQ(latest(folder.path(), &warnings), 6);
  EXPECT_THAT(warnings, HasSubstr("in the rest of epoch 0 samples come in the order of this version"));
  save_checkpoint(folder.path(), checkpoint_of(7), 2);
  EXPECT_EQ(latest(folder.path(), &warnings), 7);
  EXPECT_EQ(warnings, "");
}

/// Limits the size of files of this process to `bytes`, which acts like a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit = {.rlim_cur = bytes, .rlim_max = old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_ = {};
  void (*old_handler_)(int);
};

TEST(TrainingCheckpoint, WriteWithoutRoomKeepsPreviousAsLatest) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), checkpoint_of(1), 1);
  TrainingCheckpoint large = checkpoint_of(2);
  large.optimizer["momentum/w"] = at::full({4096}, 1.0);
  {
    const FileSizeLimit limit(8192);
    try {
      save_checkpoint(folder.path(), large, 1);
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("optimizer.safetensors"));
    }
  }
  EXPECT_EQ(latest(folder.path()), 1);
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("step-00000001"));
}

}  // namespace
}  // namespace trireme::checkpoint
