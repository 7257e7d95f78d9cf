// `trireme verify` over small versions of the examples. Every model, number format and reduction, on ranks
// that are processes, computes what one rank computes. Each mode runs on 2 and on 4 ranks, and so does each
// example. Not every example runs in every mode.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

struct Example {
  const char* name;
  const char* file;
  const char* steps;
  std::vector<std::string> settings;  ///< that make it small
};

struct Way {
  const char* name;
  const char* example_on_2;
  const char* example_on_4;
  std::vector<std::string> settings;
  int accumulation = 1;
  int stages = 1;
};

const std::vector<Example> kExamples = {
    {"Cnn", "fashion_mnist.toml", "2", {"data.name=synthetic"}},
    {"Gpt", "gpt_char.toml", "2", {"data.block=16", "model.layers=2", "model.heads=2", "model.width=32"}},
    {"ResNet18", "resnet18.toml", "1", {"data.name=synthetic"}}};

// A loss scale at which no gradient overflows. A skipped step would be equal and prove nothing.
const std::vector<Way> kWays = {
    {.name = "Fp32", .example_on_2 = "Gpt", .example_on_4 = "ResNet18", .settings = {}},
    {.name = "Bf16", .example_on_2 = "Cnn", .example_on_4 = "Gpt", .settings = {"train.precision=bf16"}},
    {.name = "Fp16",
     .example_on_2 = "Gpt",
     .example_on_4 = "Cnn",
     .settings = {"train.precision=fp16", "scaler.initial=1"}},
    {.name = "Accumulation",
     .example_on_2 = "ResNet18",
     .example_on_4 = "Gpt",
     .settings = {},
     .accumulation = 4},
    {.name = "FindUnused",
     .example_on_2 = "Cnn",
     .example_on_4 = "ResNet18",
     .settings = {"parallel.unused_parameters=find"}},
    {.name = "Pipeline",
     .example_on_2 = "ResNet18",
     .example_on_4 = "Cnn",
     .settings = {"parallel.pipeline=2", "parallel.microbatches=4"},
     .stages = 2},
    {.name = "MuonPipeline",
     .example_on_2 = "Cnn",
     .example_on_4 = "Gpt",
     .settings = {"optimizer.name=muon", "optimizer.nesterov=true", "parallel.pipeline=2",
                  "parallel.microbatches=4"},
     .stages = 2},
    {.name = "PipelineZeroBubbleBf16Recompute",
     .example_on_2 = "Gpt",
     .example_on_4 = "Cnn",
     .settings = {"parallel.pipeline=2", "parallel.microbatches=4", "parallel.schedule=zb-h1",
                  "parallel.recompute=true", "train.precision=bf16"},
     .stages = 2}};

std::ostream& operator<<(std::ostream& out, const Example& example) { return out << example.name; }
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

using Row = std::tuple<Example, Way, int>;

const Example& example_named(std::string_view name) {
  return *std::find_if(kExamples.begin(), kExamples.end(),
                       [&](const Example& example) { return example.name == name; });
}

std::vector<Row> rows() {
  std::vector<Row> result;
  for (const Way& way : kWays) {
    result.emplace_back(example_named(way.example_on_2), way, 2);
    result.emplace_back(example_named(way.example_on_4), way, 4);
  }
  return result;
}

std::string name_of(const Row& row) {
  const auto& [example, way, ranks] = row;
  return text(example.name, way.name, "On", ranks);
}

TEST(VerifiedRows, HaveEachExampleOnTwoAndFour) {
  std::set<std::pair<std::string, int>> found;
  for (const auto& [example, way, ranks] : rows()) found.emplace(example.name, ranks);
  EXPECT_EQ(found.size(), 2 * kExamples.size());
}

class VerifiedExamples : public testing::TestWithParam<Row> {
 protected:
  /// Enough text for a few batches. Its characters follow each other by a rule.
  std::string text_file() const {
    std::string letters;
    for (int i = 0; i < 3000; ++i) letters += static_cast<char>('a' + (i * i + i / 7) % 23);
    write_file_atomic(folder_ / "text.txt", letters);
    return (folder_ / "text.txt").string();
  }

  std::vector<std::string> command() const {
    const auto& [example, way, ranks] = GetParam();
    std::vector<std::string> words = {bin("trireme"), "verify",    text(checkout("examples/"), example.file),
                                      "-n",           text(ranks), "--steps",
                                      example.steps,  "--json"};
    std::vector<std::string> settings = {
        // Batch norm needs at least two samples in every part.
        text("train.global_batch=", 2 * ranks * way.accumulation * way.stages),
        text("train.accumulation=", way.accumulation), "comm.torch_threads=1", "lr.schedule=constant",
        "lr.warmup_steps=0"};
    if (std::string_view(example.name) == "Gpt") settings.push_back("data.path=" + text_file());
    settings.insert(settings.end(), example.settings.begin(), example.settings.end());
    settings.insert(settings.end(), way.settings.begin(), way.settings.end());
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return words;
  }

  TemporaryFolder folder_;
};

TEST_P(VerifiedExamples, ComputeTheSameAsOneRank) {
  const auto& [example, way, ranks] = GetParam();
  const ChildResult result = run(command(), {}, 170);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto verdict = nlohmann::json::parse(result.out);
  EXPECT_TRUE(verdict["equal"]) << result.out;
  EXPECT_EQ(verdict["world_size"], ranks);
  // One part per rank, over shared memory: parts are added in the order of the ranks. One pipeline adds in
  // the order of the micro-batches. An exception is the embedding of the GPT, which is also its last layer.
  const bool shares_parameters = std::string_view(example.name) == "Gpt";
  const bool in_order = way.stages == 1 ? way.accumulation == 1 : ranks == 2 && !shares_parameters;
  EXPECT_EQ(verdict["bounds"]["gradient"] == 0, in_order) << result.out;
  if (in_order) {
    EXPECT_TRUE(verdict["bitwise"]) << result.out;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, VerifiedExamples, testing::ValuesIn(rows()),
                         [](const auto& row) { return name_of(row.param); });

}  // namespace
}  // namespace trireme::test
