#include "trireme/checkpoint/checkpoint_report.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/internal/xxh3.h"
#include "trireme/checkpoint/training_checkpoint.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// The manifest with its correct checksum.
std::string with_checksum(const std::string& manifest) {
  auto json = nlohmann::ordered_json::parse(manifest);
  Xxh3 hash;
  hash.add(json.dump(2));
  json["xxh3"] = hash.hex();
  return json.dump();
}

class CheckpointReport : public testing::Test {
 protected:
  CheckpointReport() {
    saved_ = save_checkpoint(folder_.path(),
                             {.step = 12,
                              .epoch = 2,
                              .batch = 7,
                              .model = {{"w", at::full({4, 3}, 0.5)}, {"n", at::zeros({}, at::kLong)}},
                              .optimizer = {{"momentum/w", at::full({4, 3}, 0.5)}},
                              .config = "[run]\nname = \"x\"\n"},
                             0);
  }

  /// "name: problem" of every file that has one.
  std::vector<std::string> problems() const {
    std::vector<std::string> result;
    for (const FileVerdict& verdict : verify_checkpoint(saved_)) {
      if (!verdict.problem.empty()) result.push_back(verdict.name + ": " + verdict.problem);
    }
    return result;
  }

  void flip_a_byte(const std::string& file, std::size_t at) const {
    std::string bytes = read_file(saved_ / file);
    bytes[at] ^= 1;
    write(file, bytes);
  }

  void write(const std::string& file, const std::string& bytes) const {
    fs::remove(saved_ / file);
    std::ofstream(saved_ / file, std::ios::binary) << bytes;
  }

  TemporaryFolder folder_;
  fs::path saved_;
};

// A checkpoint may be untrusted.
class SecurityCheckpointFiles : public CheckpointReport {};

TEST_F(SecurityCheckpointFiles, FifoIsProblemAndNotAwaited) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.toml"}) {
    const std::string before = read_file(saved_ / name);
    fs::remove(saved_ / name);
    ASSERT_EQ(::mkfifo((saved_ / name).c_str(), 0666), 0);
    EXPECT_THAT(problems(), ElementsAre(testing::StartsWith(name)));
    EXPECT_THROW(load_checkpoint(saved_), DataError) << name;
    fs::remove(saved_ / name);
    write(name, before);
  }
  fs::remove(saved_ / "manifest.json");
  ASSERT_EQ(::mkfifo((saved_ / "manifest.json").c_str(), 0666), 0);
  EXPECT_THAT(problems(), testing::Contains(testing::StartsWith("manifest.json")));
}

TEST_F(SecurityCheckpointFiles, RejectsConfigurationBeyondItsLimit) {
  const auto saved_with = [&](std::size_t bytes) {
    return save_checkpoint(folder_ / std::to_string(bytes), {.config = std::string(bytes, '#')}, 0);
  };
  const fs::path whole = saved_with(4 << 20), beyond = saved_with((4 << 20) + 1);
  EXPECT_EQ(load_checkpoint(whole).config.size(), 4U << 20);
  EXPECT_EQ(inspect_checkpoint(whole).config.size(), 4U << 20);
  const auto is_no_configuration =
      testing::ThrowsMessage<DataError>(HasSubstr("is not a configuration: it has 4194305 bytes"));
  EXPECT_THAT([&] { load_checkpoint(beyond); }, is_no_configuration);
  EXPECT_THAT([&] { inspect_checkpoint(beyond); }, is_no_configuration);
}

TEST_F(CheckpointReport, InspectionSaysPlaceAndTensors) {
  const CheckpointContents contents = inspect_checkpoint(saved_);
  EXPECT_EQ(contents.step, 12);
  EXPECT_EQ(contents.epoch, 2U);
  EXPECT_EQ(contents.batch, 7);
  EXPECT_EQ(contents.config, "[run]\nname = \"x\"\n");
  ASSERT_EQ(contents.files.size(), 2U);
  const SafetensorsContents& model = contents.files[0];
  EXPECT_EQ(model.file, "model.safetensors");
  EXPECT_EQ(model.file_bytes, fs::file_size(saved_ / "model.safetensors"));
  EXPECT_EQ(model.metadata.at("step"), "12");
  ASSERT_EQ(model.tensors.size(), 2U);
  EXPECT_EQ(model.tensors[1].name, "w");
  EXPECT_EQ(model.tensors[1].dtype, "F32");
  EXPECT_THAT(model.tensors[1].shape, ElementsAre(4, 3));
  EXPECT_EQ(model.tensors[1].bytes, 48U);
  EXPECT_EQ(contents.files[1].tensors[0].name, "momentum/w");
}

TEST_F(CheckpointReport, InspectionOfForeignFileNamesIt) {
  fs::resize_file(saved_ / "model.safetensors", 100);
  try {
    inspect_checkpoint(saved_);
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.safetensors"));
  }
  EXPECT_THROW(inspect_checkpoint(folder_.path()), DataError);
  EXPECT_THROW(inspect_safetensors(saved_ / "config.toml"), DataError);
}

TEST_F(CheckpointReport, AWholeCheckpointHasNoProblem) {
  EXPECT_TRUE(problems().empty());
  const auto verdicts = verify_checkpoint(saved_);
  ASSERT_EQ(verdicts.size(), 4U);
  EXPECT_EQ(verdicts[0].name, "manifest.json");
  EXPECT_EQ(verdicts[1].bytes, fs::file_size(saved_ / "model.safetensors"));
}

TEST_F(CheckpointReport, ATruncatedFileIsCalledTruncated) {
  fs::resize_file(saved_ / "model.safetensors", 100);
  EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr("model.safetensors: is truncated: it has 100 bytes"),
                                            HasSubstr("the manifest says"))));
}

TEST_F(CheckpointReport, FindsEveryFlippedBitOfTensors) {
  const std::size_t size = read_file(saved_ / "optimizer.safetensors").size();
  for (std::size_t at = 0; at < size; ++at) {
    flip_a_byte("optimizer.safetensors", at);
    EXPECT_THAT(problems(), ElementsAre(HasSubstr("optimizer.safetensors: is damaged"))) << at;
    flip_a_byte("optimizer.safetensors", at);
  }
  EXPECT_TRUE(problems().empty());
}

TEST_F(CheckpointReport, FlippedManifestBitsAreFoundOrHarmless) {
  const std::size_t size = read_file(saved_ / "manifest.json").size();
  int found = 0;
  for (std::size_t at = 0; at < size; ++at) {
    flip_a_byte("manifest.json", at);
    if (!problems().empty()) {
      ++found;
      EXPECT_THROW(load_checkpoint(saved_), DataError) << at;
    } else {
      EXPECT_EQ(load_checkpoint(saved_).step, 12) << at;
    }
    flip_a_byte("manifest.json", at);
  }
  EXPECT_GT(found, 250);
}

TEST_F(CheckpointReport, MissingAndForeignFilesAreNamed) {
  fs::remove(saved_ / "config.toml");
  std::ofstream(saved_ / "notes.txt") << "mine";
  fs::create_directory(saved_ / "more");
  EXPECT_THAT(problems(), ElementsAre("config.toml: is missing", HasSubstr("more/: is foreign"),
                                      HasSubstr("notes.txt: is foreign")));
}

TEST_F(CheckpointReport, FindsForeignFileInPlaceOfOne) {
  write("model.safetensors", read_file(saved_ / "model.safetensors") + "more");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("model.safetensors: is another file")));
}

TEST_F(CheckpointReport, WithoutAManifestNothingCanBeChecked) {
  fs::remove(saved_ / "manifest.json");
  EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr("manifest.json: "), HasSubstr("is missing")),
                                      HasSubstr("config.toml: cannot be checked"),
                                      HasSubstr("model.safetensors: cannot be checked"),
                                      HasSubstr("optimizer.safetensors: cannot be checked")));
  EXPECT_THROW(verify_checkpoint(folder_ / "none"), DataError);
}

TEST_F(CheckpointReport, RejectsManifestOfOtherFiles) {
  const auto problem_with = [&](const std::string& manifest) {
    write("manifest.json", manifest);
    return problems().front();
  };
  const std::string begin =
      R"({"format": "trireme training checkpoint", "version": 1, "step": 1, "epoch": 0, )";
  EXPECT_THAT(problem_with("{}"), HasSubstr("does not say that its format is"));
  EXPECT_THAT(problem_with("{"), HasSubstr("not a valid manifest"));
  EXPECT_THAT(problem_with(R"({"format": "trireme training checkpoint", "version": 9})"),
              HasSubstr("is of version 9, this program reads versions 1 to 3"));
  EXPECT_THAT(problem_with(begin + R"("batch": 0, "files": {}})"), HasSubstr("it has no checksum 'xxh3'"));
  const auto problem_of_whole = [&](const std::string& rest) {
    return problem_with(with_checksum(begin + rest));
  };
  EXPECT_THAT(problem_of_whole(R"("batch": 0, "files": {}})"), HasSubstr("does not list model.safetensors"));
  EXPECT_THAT(problem_of_whole(R"("batch": 0, "files": {"../x": {"bytes": 1, "xxh3": ""}}})"),
              HasSubstr("'../x' is not the name of a file in its folder"));
  EXPECT_THAT(problem_of_whole(R"("batches": 0, "files": {}})"), HasSubstr("unknown key"));
  EXPECT_THAT(problem_of_whole(
                  R"("batch": 0, "files": {"model-00002-of-00002.safetensors": {"bytes": 1, "xxh3": ""}}})"),
              HasSubstr("does not list the files of 2 writers"));
}

TEST_F(CheckpointReport, RejectsManifestWithEndlessNesting) {
  const std::string begin =
      R"({"format": "trireme training checkpoint", "version": 1, "xxh3": "", "files": )";
  write("manifest.json", begin + std::string(200000, '[') + std::string(200000, ']') + "}");
  EXPECT_THAT(problems().front(), AllOf(HasSubstr("manifest.json"), HasSubstr("levels deep")));
}

}  // namespace
}  // namespace trireme::checkpoint
