// The programs of docs/tutorials.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

/// Standard output of example_tutorial_NAME on this number of ranks, without prefixes. One rank runs without
/// a launcher.
std::string output_of(const std::string& name, int ranks, const std::vector<std::string>& arguments = {}) {
  std::vector<std::string> command;
  if (ranks > 1) command = {bin("trireme"), "launch", "-n", text(ranks), "--no-prefix", "--"};
  command.push_back(bin("example_tutorial_" + name));
  command.insert(command.end(), arguments.begin(), arguments.end());
  const ChildResult result = run(command);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

/// The number after `words`, as printed.
std::string number_after(const std::string& words, const std::string& out) {
  const std::size_t at = out.find(words);
  if (at == std::string::npos) {
    ADD_FAILURE() << "no '" << words << "' in " << out;
    return "-1";
  }
  const std::size_t begin = at + words.size();
  return out.substr(begin, out.find_first_not_of("0123456789.", begin) - begin);
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Tutorials, DdpLearnsAndRanksLoadOneCheckpoint) {
  const TemporaryFolder folder;
  const std::string out = output_of("ddp", 2, {(folder / "toy.pt").string()});
  const double first = std::stod(number_after("loss ", out));
  const double saved = std::stod(number_after("after 50 steps ", out));
  EXPECT_LT(saved, 0.75 * first);
  EXPECT_LT(std::stod(number_after("after 50 more steps ", out)), 0.75 * saved);
  EXPECT_THAT(out, HasSubstr("rank 0: loaded equals saved"));
  EXPECT_THAT(out, HasSubstr("rank 1: loaded equals saved"));
  EXPECT_FALSE(std::filesystem::exists(folder / "toy.pt"));
}

TEST(Tutorials, FsdpHoldsHalfAndResumesFromWhole) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const TemporaryFolder folder;
    const std::string out = output_of("fsdp", 2, {folder.path().string(), precision});
    const auto whole = std::stol(number_after(" of ", out));
    for (const std::string rank : {"0", "1"})
      EXPECT_EQ(std::stol(number_after("rank " + rank + " holds ", out)), whole / 2) << out;
    const std::string next = number_after("step 21: loss ", out);
    EXPECT_EQ(number_after("of the loaded state ", out), next) << precision;
    EXPECT_EQ(number_after("loss of model.pt ", out), next) << precision;
    EXPECT_LT(std::stod(next), 0.5 * std::stod(number_after("step 10: loss ", out))) << precision;
  }
}

TEST(Tutorials, PipelineOfTwoHasLossesOfOne) {
  const auto losses = [](std::string out) {
    return std::regex_replace(out, std::regex("rank [01] has [0-9]+ parameter tensors\n"), "");
  };
  const std::string out = output_of("pipeline", 2), two = losses(out);
  EXPECT_EQ(two, losses(output_of("pipeline", 1)));
  EXPECT_LT(std::stod(number_after("step 20: loss ", two)),
            0.9 * std::stod(number_after("step 1: loss ", two)));
  // 1 + 4 x 18 tensors of the embedding and four layers; 4 x 18 + 2 + 2 of the other layers, the norm and the
  // output.
  EXPECT_THAT(out, HasSubstr("rank 0 has 73 parameter tensors"));
  EXPECT_THAT(out, HasSubstr("rank 1 has 76 parameter tensors"));
}

TEST(Tutorials, TrainersTeachModelOfParameterServer) {
  const std::string out = output_of("parameter_server", 3);
  for (const std::string trainer : {"trainer 1: ", "trainer 2: "}) {
    EXPECT_LT(std::stod(number_after(trainer + "step 100: loss ", out)),
              0.2 * std::stod(number_after(trainer + "step 1: loss ", out)));
    EXPECT_GT(std::stod(number_after(trainer + "accuracy ", out)), 0.95);
  }
}

TEST(Tutorials, FewerRanksLoadCheckpointOfFour) {
  const TemporaryFolder folder;
  const std::string words = "loss 10 steps later: ";
  const std::string saved = output_of("checkpoint", 4, {"save", folder.path().string()});
  const std::string weights = bytes_of(folder / "weights-save.safetensors");
  for (const int ranks : {2, 1}) {
    const std::string loaded = output_of("checkpoint", ranks, {"load", folder.path().string()});
    EXPECT_THAT(loaded, HasSubstr("load step 10 with " + text(ranks) + " ranks"));
    EXPECT_TRUE(bytes_of(folder / "weights-load.safetensors") == weights) << ranks;
    // The state of Adam is loaded, too, so the same steps follow.
    EXPECT_NEAR(std::stod(number_after(words, loaded)), std::stod(number_after(words, saved)), 2e-6);
  }
}

}  // namespace
}  // namespace trireme::test
