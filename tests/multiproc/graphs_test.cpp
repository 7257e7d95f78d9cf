// train.graph on several ranks. Hooks and transfers of the host run during replays, and the bits are
// unchanged.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

struct GraphedRanks {
  const char* name;
  int ranks;
  std::vector<std::string> settings;
};

std::ostream& operator<<(std::ostream& out, const GraphedRanks& row) { return out << row.name; }

const GraphedRanks kGraphedRanks[] = {
    {"DataParallel", 2, {"train.accumulation=2"}},
    {"ClippedZero2", 2, {"parallel.zero=2", "train.clip_norm=0.01"}},
    {"Compressed", 2, {"parallel.compression=int8"}},
    {"Stages1f1b", 2, {"parallel.pipeline=2", "parallel.microbatches=4", "parallel.partition=parameters"}},
    {"StagesGpipe",
     2,
     {"parallel.pipeline=2", "parallel.schedule=gpipe", "parallel.microbatches=4",
      "parallel.partition=parameters", "train.precision=bf16"}},
    {"StagesZeroBubble",
     2,
     {"parallel.pipeline=2", "parallel.schedule=zb-h1", "parallel.microbatches=4",
      "parallel.partition=parameters"}},
    {"ReplicatedStages",
     4,
     {"parallel.pipeline=2", "parallel.microbatches=2", "parallel.partition=parameters"}},
};

/// The output lines of the run, sorted.
std::vector<std::string> lines_with(const GraphedRanks& row, const std::string& graph) {
  std::vector<std::string> words = {bin("trireme"),
                                    "launch",
                                    "-n",
                                    text(row.ranks),
                                    "--",
                                    bin("rank_device_graphs"),
                                    checkout("examples/quick.toml"),
                                    graph,
                                    "8",
                                    "model.hidden=[16, 8]",
                                    "optimizer.lr=0.05",
                                    "comm.timeout_s=60",
                                    "comm.torch_threads=1"};
  words.insert(words.end(), row.settings.begin(), row.settings.end());
  const ChildResult result = run(words, {}, 150);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  std::vector<std::string> lines = split(result.out, '\n');
  std::ranges::sort(lines);
  return lines;
}

bool is_of_replays(const std::string& line) { return line.find("replays of rank") != std::string::npos; }

class GraphsOfRanks : public testing::TestWithParam<GraphedRanks> {};

TEST_P(GraphsOfRanks, HaveBitsOfPlainRanks) {
  std::vector<std::string> graphed = lines_with(GetParam(), "on"), plain = lines_with(GetParam(), "off");
  EXPECT_EQ(std::ranges::count_if(graphed, is_of_replays), GetParam().ranks);
  for (const std::string& line : graphed) {
    if (!is_of_replays(line)) continue;
    EXPECT_FALSE(line.ends_with(": 0")) << line;
  }
  std::erase_if(graphed, is_of_replays);
  std::erase_if(plain, is_of_replays);
  EXPECT_GE(plain.size(), 8U);
  EXPECT_EQ(graphed, plain);
}

INSTANTIATE_TEST_SUITE_P(Of, GraphsOfRanks, testing::ValuesIn(kGraphedRanks),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace trireme::test
