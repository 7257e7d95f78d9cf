// Gradients by priority between hosts with a slow link. The run gives the bits of a run in order. A rank that
// exits between two slices is named as the cause.

#include <gmock/gmock.h>
#include <signal.h>

#include "tests/support/paths.h"
#include "tests/support/switched_hosts.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::ContainsRegex;

class Priority : public testing::Test {
 protected:
  std::vector<std::string> command(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {bin("trireme-torch"), "train", checkout("examples/quick.toml")};
    std::vector<std::string> settings = {"run.folder=" + folder_.path().string(),
                                         "run.name=" + name,
                                         "model.hidden=[128,64]",
                                         "train.max_steps=24",
                                         "train.clip_norm=0",
                                         "comm.timeout_s=20"};
    settings.insert(settings.end(), more.begin(), more.end());
    for (const std::string& each : settings) words.insert(words.end(), {"--set", each});
    return words;
  }
  static const std::vector<std::string> kByNeed;

  TemporaryFolder folder_;
};
const std::vector<std::string> Priority::kByNeed = {"parallel.priority=forward", "parallel.slice_kib=16"};

TEST_F(Priority, SlowLinkKeepsBitsOfOrderedRun) {
  const SwitchedHosts hosts(2, 0.0005, 100e6);
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  const auto trained = [&](const std::string& name, const std::vector<std::string>& more) {
    for (auto& launcher : hosts.launch(2, command(name, more))) {
      const ChildResult result = launcher->wait(120);
      EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    }
    return read_run(folder_ / name);
  };
  const TrainedRun in_order = trained("in_order", {}), by_need = trained("by_need", kByNeed);
  EXPECT_EQ(by_need.steps, 24);
  EXPECT_EQ(by_need.weights_xxh3, in_order.weights_xxh3);
  EXPECT_EQ(by_need.losses, in_order.losses);
}

TEST_F(Priority, ThreeHostsNameRankKilledBetweenSlices) {
  const SwitchedHosts hosts(3, 0.0005, 100e6);
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  std::vector<std::string> settings = kByNeed;
  // Most of a step is slices, so a kill usually hits between two of them.
  settings.insert(settings.end(), {"model.hidden=[1024,256]", "train.max_steps=100000", "train.epochs=100000",
                                   "run.log_every_steps=5", "comm.timeout_s=5"});
  const auto launchers = hosts.launch(1, command("killed", settings));
  ASSERT_TRUE(launchers[0]->wait_for_output("step ", 60));
  ::kill(launchers[1]->children().at(0), SIGKILL);
  for (const std::size_t host : {0, 2}) {
    const ChildResult result = launchers[host]->wait(60);
    EXPECT_EQ(result.exit_code, 3) << result.out;
    EXPECT_THAT(result.err, ContainsRegex("error: [^\n]*rank 1")) << host;
  }
}

}  // namespace
}  // namespace trireme::test
