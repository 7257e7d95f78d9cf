// `trireme checkpoint` exchanges weights with Python: it imports files of torch.save and exports weights.

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/training_checkpoint.h"

namespace trireme::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::filesystem::path kParityFolder = test::checkout("tests/parity");
const std::string kScript = (kParityFolder / "safetensors_weights_reference.py").string();

/// The state of the model in safetensors_weights_reference.py.
TensorMap expected_weights() {
  struct Row {
    const char* name;
    std::vector<std::int64_t> shape;
    at::ScalarType type;
    int first;
  };
  const std::vector<Row> rows = {{"fc1.bias", {2}, at::kFloat, 0},
                                 {"fc1.weight", {2, 3}, at::kFloat, 10},  // tied to tied.weight
                                 {"half.bias", {2}, at::kBFloat16, 2},
                                 {"half.weight", {2, 2}, at::kBFloat16, 3},
                                 {"norm.bias", {2}, at::kFloat, 4},
                                 {"norm.num_batches_tracked", {}, at::kLong, 5},
                                 {"norm.running_mean", {2}, at::kFloat, 6},
                                 {"norm.running_var", {2}, at::kFloat, 7},
                                 {"norm.weight", {2}, at::kFloat, 8},
                                 {"tied.bias", {2}, at::kFloat, 9},
                                 {"tied.weight", {2, 3}, at::kFloat, 10},
                                 {"turned", {3, 2}, at::kFloat, 11}};
  TensorMap tensors;
  for (const Row& row : rows) {
    std::int64_t elements = 1;
    for (const std::int64_t dim : row.shape) elements *= dim;
    tensors[row.name] = (at::arange(elements) + row.first).to(row.type).reshape(row.shape);
  }
  return tensors;
}

class CheckpointCommand : public testing::Test {
 protected:
  CheckpointCommand() {
    for (const std::int64_t step : {10, 20}) {
      newest_ = save_checkpoint(folder_ / "run" / "checkpoints",
                                {.step = step,
                                 .epoch = 1,
                                 .batch = 4,
                                 .model = expected_weights(),
                                 .optimizer = {{"momentum/fc1.weight", at::full({2, 3}, 0.5)}},
                                 .config = "[run]\nname = \"parity\"\nof_a_later_version = 1\n\n"
                                           "[model]\nname = \"mlp\"\n"},
                                0);
    }
  }

  static test::ChildResult checkpoint(const std::vector<std::string>& words) {
    std::vector<std::string> command = {test::bin("trireme"), "checkpoint"};
    command.insert(command.end(), words.begin(), words.end());
    return test::run(command);
  }

  std::string run() const { return (folder_ / "run").string(); }
  std::string out() const { return (folder_ / "out.safetensors").string(); }

  test::TemporaryFolder folder_;
  std::filesystem::path newest_;
};

TEST_F(CheckpointCommand, ImportsFilesOfTorchSave) {
  const auto result = checkpoint({"import", (kParityFolder / "data/torch_save.pt").string(), out()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("wrote 12 tensors"));
  EXPECT_EQ(xxh3_of(load_safetensors(out()).tensors), xxh3_of(expected_weights()));
}

TEST_F(CheckpointCommand, ImportKeepsTheMetadataOfSafetensors) {
  const auto from = kParityFolder / "data/safetensors_python.safetensors";
  ASSERT_EQ(checkpoint({"import", from.string(), out()}).exit_code, 0);
  EXPECT_EQ(load_safetensors(out()).metadata, load_safetensors(from).metadata);
  EXPECT_EQ(xxh3_of(load_safetensors(out()).tensors), xxh3_of(load_safetensors(from).tensors));
}

TEST_F(CheckpointCommand, ImportOfForeignFileNamesExpectedFormat) {
  const auto result = checkpoint({"import", kScript, out()});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr(kScript));
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(CheckpointCommand, InspectsTheNewestCheckpointOfARun) {
  const auto result = checkpoint({"inspect", run(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["run"], "parity");
  EXPECT_EQ(report["model"], "mlp");
  EXPECT_EQ(report["step"], 20);
  EXPECT_EQ(report["epoch"], 1);
  EXPECT_EQ(report["path"], newest_.string());
  EXPECT_EQ(report["checkpoints"].size(), 2U);
  EXPECT_EQ(report["files"][0]["file"], "model.safetensors");
  EXPECT_EQ(report["files"][0]["total"]["tensors"], 12);
  EXPECT_EQ(report["total"]["tensors"], 13);
  const auto text = checkpoint({"inspect", newest_.string() + "/"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("step   20"), HasSubstr("epoch  1, batch 4"),
                              HasSubstr("half.weight"), HasSubstr("BF16"), HasSubstr("[2, 2]")));
}

TEST_F(CheckpointCommand, VerifyNamesDamagedFileWithExitFour) {
  EXPECT_EQ(checkpoint({"verify", run()}).exit_code, 0);
  const std::string model = (newest_ / "model.safetensors").string();
  EXPECT_EQ(checkpoint({"verify", model}).exit_code, 0);
  std::string bytes = read_file(model);
  bytes.back() ^= 1;
  std::filesystem::remove(model);
  std::ofstream(model, std::ios::binary) << bytes;
  const auto result = checkpoint({"verify", run(), "--json"});
  EXPECT_EQ(result.exit_code, 4);
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["ok"], false);
  EXPECT_EQ(report["checkpoints"][0]["ok"], true);
  EXPECT_EQ(report["checkpoints"][1]["files"][1]["file"], "model.safetensors");
  EXPECT_THAT(report["checkpoints"][1]["files"][1]["problem"], HasSubstr("is damaged"));
  EXPECT_EQ(checkpoint({"verify", model}).exit_code, 4);
  EXPECT_THAT(checkpoint({"verify", newest_.string()}).out, HasSubstr("NOT WHOLE"));
  const auto exported = checkpoint({"export", newest_.string(), out()});
  EXPECT_EQ(exported.exit_code, 4);
  EXPECT_THAT(exported.err, HasSubstr("model.safetensors"));
}

TEST_F(CheckpointCommand, FolderWithoutCheckpointsNamesExpectedContent) {
  std::filesystem::create_directory(folder_ / "empty");
  for (const std::string action : {"inspect", "verify"}) {
    EXPECT_EQ(checkpoint({action, (folder_ / "none").string()}).exit_code, 4);
    const auto empty = checkpoint({action, (folder_ / "empty").string()});
    EXPECT_EQ(empty.exit_code, 4);
    EXPECT_THAT(empty.err, HasSubstr("expected folders step-NNNNNNNN"));
  }
}

TEST_F(CheckpointCommand, ExportRejectsExtensionsOfOtherFormats) {
  const auto rejected = checkpoint({"export", run(), (folder_ / "weights.pt").string()});
  EXPECT_EQ(rejected.exit_code, 2);
  EXPECT_THAT(rejected.err, HasSubstr("weights.safetensors, which PyTorch reads"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "weights.pt"));
}

TEST_F(CheckpointCommand, ExportReplacesAFileOnlyByForce) {
  std::ofstream(out()) << "mine";
  const auto refused = checkpoint({"export", run(), out()});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(out()), HasSubstr("--force")));
  EXPECT_EQ(read_file(out()), "mine");
  ASSERT_EQ(checkpoint({"export", run(), out(), "--force"}).exit_code, 0);
  EXPECT_EQ(xxh3_of(load_safetensors(out()).tensors), xxh3_of(expected_weights()));
}

TEST_F(CheckpointCommand, PythonExportsAndImportsMatch) {
  const char* chosen = std::getenv("TRIREME_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  if (test::run({python, "-c", "import torch, safetensors.torch"}).exit_code != 0) {
    GTEST_SKIP() << python << " has no torch and safetensors; set TRIREME_PYTHON to a Python that has";
  }
  ASSERT_EQ(checkpoint({"export", run(), out()}).exit_code, 0);
  const auto checked = test::run({python, kScript, "check", out(), "20"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  const std::string saved = (folder_ / "saved.pt").string();
  ASSERT_EQ(test::run({python, kScript, "make", saved}).exit_code, 0);
  const auto imported = checkpoint({"import", saved, out(), "--force"});
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_EQ(xxh3_of(load_safetensors(out()).tensors), xxh3_of(expected_weights()));
  ASSERT_EQ(test::run({python, kScript, "makeordered", saved}).exit_code, 0);
  const auto ordered = checkpoint({"import", saved, out(), "--force"});
  ASSERT_EQ(ordered.exit_code, 0) << ordered.err;
  EXPECT_EQ(xxh3_of(load_safetensors(out()).tensors), xxh3_of(expected_weights()));
}

}  // namespace
}  // namespace trireme::checkpoint
