// The folders to which servers write a checkpoint that a worker requests, and writes that no worker can
// cause.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/ps/checkpoint_file.h"

namespace trireme::ps {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// A root with an unfinished checkpoint, and a file elsewhere that must not change.
class SecuritySavedParts : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(begun_);
    std::ofstream(victim_) << "precious";
  }
  void TearDown() override { EXPECT_EQ(read_file(victim_), "precious"); }

  /// The name of the file, or the reason why none was written.
  std::string saved_in(const std::string& folder) {
    PartContents part;
    part.folder = folder;
    part.header = {
        .partition = 3, .epoch = 2, .version = 9, .tables = {}, .chunks = {{.table = 1}}, .rows = {}};
    part.chunks.resize(1);
    try {
      return write_part(std::move(part), CheckpointRoot(root_)).file;
    } catch (const DataError& error) {
      return error.what();
    }
  }

  const test::TemporaryFolder folder_;
  const fs::path root_ = folder_ / "root", begun_ = root_ / "run/checkpoint-1", victim_ = folder_ / "victim";
};

TEST_F(SecuritySavedParts, AreBelowTheRootOfTheServer) {
  EXPECT_EQ(saved_in(begun_), "3-2-9.part");
  EXPECT_TRUE(fs::exists(begun_ / "3-2-9.part"));
}

TEST_F(SecuritySavedParts, AreBelowRootNamedThroughLink) {
  fs::rename(root_, folder_ / "real");
  fs::create_directory_symlink(folder_ / "real", root_);
  EXPECT_EQ(saved_in(begun_), "3-2-9.part");
  fs::remove(begun_ / "3-2-9.part");
  EXPECT_EQ(saved_in(folder_ / "real/run/checkpoint-1"), "3-2-9.part");
}

TEST_F(SecuritySavedParts, AreNowhereElse) {
  fs::create_directories(folder_ / "checkpoint-1");
  fs::create_directories(folder_ / "rooted/checkpoint-1");
  const std::string root = root_.string();
  for (const std::string& folder :
       {(folder_ / "checkpoint-1").string(), (folder_ / "rooted/checkpoint-1").string(),
        root + "/../checkpoint-1", root + "/run/../../checkpoint-1", root, root + "/", std::string("/"),
        std::string("checkpoint-1"), std::string("run/checkpoint-1"), std::string(),
        root + "/./run/checkpoint-1", root + "/run/checkpoint-1/", std::string("/etc/checkpoint-1")})
    EXPECT_THAT(saved_in(folder), AllOf(HasSubstr("not a folder below " + root), HasSubstr("--checkpoints")))
        << folder;
  EXPECT_TRUE(fs::is_empty(folder_ / "checkpoint-1"));
  EXPECT_THAT(saved_in(root + std::string("/a\0b/checkpoint-1", 17)),
              HasSubstr("a checkpoint was asked for"));
}

TEST_F(SecuritySavedParts, AreNotBelowFileSystemRoot) {
  EXPECT_THROW(CheckpointRoot("/").open(begun_), DataError);
  EXPECT_THROW(CheckpointRoot("/tmp/..").open(begun_), DataError);
}

TEST_F(SecuritySavedParts, AreNotWrittenThroughLinksToFolders) {
  fs::create_directories(folder_ / "outside/checkpoint-2");
  fs::create_directory_symlink(folder_ / "outside/checkpoint-2", root_ / "run/checkpoint-2");
  fs::create_directory_symlink(folder_ / "outside", root_ / "link");
  for (const fs::path& folder : {root_ / "run/checkpoint-2", root_ / "link/checkpoint-2"})
    EXPECT_THAT(saved_in(folder), HasSubstr("is a symbolic link"));
  EXPECT_TRUE(fs::is_empty(folder_ / "outside/checkpoint-2"));
}

TEST_F(SecuritySavedParts, ReplaceLinksNotTheirTargets) {
  const std::string name = "3-2-9.part";
  for (const std::string& each : {name, name + ".part" + std::to_string(::getpid())})
    fs::create_symlink(victim_, begun_ / each);
  EXPECT_EQ(saved_in(begun_), name);
  EXPECT_FALSE(fs::is_symlink(begun_ / name));
}

TEST_F(SecuritySavedParts, AreOfACheckpointThatWasBegun) {
  fs::create_directory(root_ / "run/other");
  EXPECT_THAT(saved_in(root_ / "run/other"), HasSubstr("expected .../checkpoint-N"));
  EXPECT_THAT(saved_in(root_ / "run/checkpoint-5"), HasSubstr("no folder that a checkpoint was begun in"));
}

TEST_F(SecuritySavedParts, RejectsFilesOutsideManifestFolder) {
  for (const char* file : {"..", "../victim", "/etc/passwd", "a/b", "."}) {
    const SavedPart part = {.partition = 0, .file = file};
    EXPECT_THROW(read_part(begun_, part, {}), DataError) << file;
  }
}

TEST(SecurityBegunCheckpoints, HaveAPathThatServersTake) {
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "a/b");
  fs::create_directory_symlink(folder / "a/b", folder / "link");
  for (const char* asked : {"run", "a/../run", "./run", "link/../run"}) {
    const fs::path begun = begin_checkpoint(folder / asked);
    EXPECT_TRUE(fs::is_directory(begun)) << begun;
    EXPECT_NO_THROW(CheckpointRoot(folder.path()).open(begun)) << begun;
  }
}

}  // namespace
}  // namespace trireme::ps
