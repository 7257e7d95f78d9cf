// What the programs say: help and refusals, word for word.

#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/child_process.h"
#include "trireme/base/files.h"

namespace trireme::test {
namespace {

std::string golden(const std::string& name) {
  return read_file(std::string(TRIREME_SOURCE_DIR "/tests/golden/cli_") + name + ".txt");
}

TEST(CliHelp, IsTheGoldenText) {
  EXPECT_EQ(run({bin("trireme"), "--help"}).out, golden("help"));
  EXPECT_EQ(run({bin("trireme"), "launch", "--help"}).out, golden("help_launch"));
  EXPECT_EQ(run({bin("trireme"), "train", "--help"}).out, golden("help_train"));
  EXPECT_EQ(run({bin("trireme"), "verify", "--help"}).out, golden("help_verify"));
  EXPECT_EQ(run({bin("trireme"), "checkpoint", "--help"}).out, golden("help_checkpoint"));
}

TEST(CliErrors, AreTheGoldenTexts) {
  std::string said;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"trian"},
                                             {"quux"},
                                             {"--verbose"},
                                             {"launch"},
                                             {"launch", "-n", "two", "--", "true"},
                                             {"launch", "-n", "0", "--", "true"},
                                             {"launch", "--nprok", "2", "--", "true"},
                                             {"train"},
                                             {"train", "a.toml", "--resum"},
                                             {"checkpoint"},
                                             {"checkpoint", "inspec", "a"},
                                             {"checkpoint", "verify", "a", "b"},
                                             {"checkpoint", "export", "a"},
                                             {"checkpoint", "inspect", "a", "--force"},
                                             {"checkpoint", "import", "a", "b", "--json"},
                                             {"bench", "allreduc"},
                                             {"completion", "tcsh"}}) {
    std::vector<std::string> command = {bin("trireme")};
    command.insert(command.end(), words.begin(), words.end());
    const auto result = run(command);
    EXPECT_EQ(result.exit_code, 2) << words.front();
    said += result.err;
  }
  EXPECT_EQ(said, golden("errors"));
}

TEST(CliCheckpoint, ListsTheTensorsOfAFile) {
  const auto result = run({"bash", "-c",
                           "cd " TRIREME_SOURCE_DIR "/tests/parity/data && " + bin("trireme") +
                               " checkpoint inspect safetensors_python.safetensors"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, golden("checkpoint_inspect"));
}

TEST(CliCompletion, KnowsEveryCommandAndOption) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const auto result = run({bin("trireme"), "completion", shell});
    EXPECT_EQ(result.exit_code, 0);
    for (const auto* word : {"train", "launch", "doctor", "bench", "backends", "max-restarts", "resume"}) {
      EXPECT_NE(result.out.find(word), std::string::npos) << shell << " " << word;
    }
  }
  const auto script =
      run({"bash", "-c",
           "source <(" + bin("trireme") +
               " completion bash); COMP_WORDS=(trireme launch --max); COMP_CWORD=2; _trireme; "
               "echo ${COMPREPLY[@]}"});
  EXPECT_EQ(script.out, "--max-restarts\n") << script.err;
}

TEST(CliVersion, IsOneLine) {
  const auto result = run({bin("trireme"), "--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.substr(0, 8), "trireme ");
}

}  // namespace
}  // namespace trireme::test
