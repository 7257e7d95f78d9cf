#pragma once
// Repeats one training run: as the program of an elastic job whose worlds change, and undisturbed with the
// same worlds by checkpoints. Exact runs give the same bits on one host and on several.

#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/trained_run.h"
#include "trireme/base/text.h"

namespace trireme::test {

class RunsOfWorlds {
 public:
  using Words = std::vector<std::string>;

  /// A world on one host: its ranks, and the step after which it ends.
  struct World {
    int ranks = 0;
    int end = 0;  ///< 0: the end of the run
  };

  explicit RunsOfWorlds(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// 1024 steps.
  Words command(const std::string& name, const Words& settings) const {
    Words words = {bin("trireme"), "train", checkout("examples/quick.toml")};
    Words all = {text("run.folder=", folder_.string()),
                 text("run.name=", name),
                 "run.exact=true",
                 "run.log_every_steps=5",
                 "train.epochs=16",
                 "model.hidden=[256,128]",
                 "checkpoint.every_steps=0",
                 "eval.every_steps=50",
                 "comm.timeout_s=5"};
    all.insert(all.end(), settings.begin(), settings.end());
    for (const std::string& setting : all) words.insert(words.end(), {"--set", setting});
    return words;
  }

  /// The hash of the weights of a run with these worlds, by checkpoints.
  std::string undisturbed(const std::vector<World>& worlds, const Words& settings) const {
    for (std::size_t i = 0; i < worlds.size(); ++i) {
      Words all = settings;
      if (worlds[i].end > 0)
        all.insert(all.end(), {text("checkpoint.every_steps=", worlds[i].end), "checkpoint.keep=99"});
      Words words = command("quiet", all);
      words.insert(words.end(), {"-n", text(worlds[i].ranks)});
      if (i > 0) words.push_back("--resume");
      const ChildResult quiet = run(words, {}, 120);
      EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
      if (worlds[i].end > 0) go_back_to(worlds[i].end);
    }
    return read_run(folder_ / "quiet").weights_xxh3;
  }

 private:
  /// Removes all checkpoints except that of the given step.
  void go_back_to(int step) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "quiet/checkpoints")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-") && std::stoi(name.substr(5)) != step)
        std::filesystem::remove_all(entry.path());
    }
    std::filesystem::remove(folder_ / "quiet/summary.json");
  }

  const std::filesystem::path folder_;
};

inline bool evaluates(ChildProcess& launcher, int step) {
  return launcher.wait_for_output(text("step ", step, "  test accuracy"), 90);
}

/// The step at which that world began, from the output of all launchers. -1: it has not begun.
inline int step_of_world(const std::string& out, int world) {
  const std::regex line("resumed from the memory of the ranks at step ([0-9]+)");
  auto found = std::sregex_iterator(out.begin(), out.end(), line);
  for (int i = 1; i < world && found != std::sregex_iterator(); ++i) ++found;
  return found == std::sregex_iterator() ? -1 : std::stoi((*found)[1]);
}

}  // namespace trireme::test
