// Training with parameter servers that the launcher started. One server is killed, then the coordinator.

#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <ostream>
#include <string>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

struct Staleness {
  const char* name;
  int steps;
};
std::ostream& operator<<(std::ostream& out, const Staleness& staleness) { return out << staleness.name; }

/// The process id of the launcher's child that has the word among its arguments. 0: there is none.
int child_of(const ChildProcess& launcher, const std::string& word) {
  for (const int pid : launcher.children()) {
    try {
      // Arguments are separated by zero bytes.
      const std::string words = read_file(text("/proc/", pid, "/cmdline"));
      if (words.find('\0' + word + '\0') != std::string::npos) return pid;
    } catch (const DataError&) {
      continue;  // the process has ended meanwhile
    }
  }
  return 0;
}

/// Kills the process with SIGKILL and waits for its replacement. Returns whether both were found.
bool kill_and_see_again(const ChildProcess& launcher, const std::string& word) {
  const int victim = child_of(launcher, word);
  if (victim == 0 || ::kill(victim, SIGKILL) != 0) return false;
  const Deadline deadline = Deadline::after_s(30);
  while (!deadline.expired()) {
    const int now = child_of(launcher, word);
    if (now != 0 && now != victim) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class ServedRun : public testing::TestWithParam<Staleness> {
 protected:
  std::vector<std::string> command(const std::string& name) const {
    std::vector<std::string> words = {bin("trireme"), "train", checkout("examples/quick.toml"), "-n", "2",
                                      "--servers",    "2"};
    for (const std::string& setting :
         {text("run.folder=", folder_.path().string()), text("run.name=", name),
          std::string("run.log_every_steps=5"), std::string("train.epochs=5"),
          std::string("model.hidden=[512,256]"), std::string("parallel.mode=ps"),
          text("ps.staleness=", GetParam().steps), std::string("train.clip_norm=0")}) {
      words.insert(words.end(), {"--set", setting});
    }
    return words;
  }
  TemporaryFolder folder_;
};

TEST_P(ServedRun, ContinuesAfterKillsOfServerAndCoordinator) {
  ChildProcess launcher(command("disturbed"));
  ASSERT_TRUE(launcher.wait_for_output("step 100  test accuracy", 90)) << launcher.output();
  ASSERT_TRUE(kill_and_see_again(launcher, "server0"));
  ASSERT_TRUE(launcher.wait_for_output("step 200  test accuracy", 90)) << launcher.output();
  ASSERT_TRUE(kill_and_see_again(launcher, "serve-coordinator"));
  const ChildResult result = launcher.wait(90);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("server 0 of the parameter server has ended; starting it again"));
  EXPECT_THAT(result.err, HasSubstr("the coordinator of the parameter server has ended; starting it again"));
  const TrainedRun found = read_run(folder_ / "disturbed");
  EXPECT_EQ(found.status, "completed");
  EXPECT_EQ(found.steps, 320);
  EXPECT_LT(found.losses.back(), 0.5 * found.losses.front());
  if (GetParam().steps != 0) return;
  const ChildResult quiet = run(command("quiet"), {}, 90);
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_EQ(found.weights_xxh3, read_run(folder_ / "quiet").weights_xxh3);
  EXPECT_EQ(found.losses, read_run(folder_ / "quiet").losses);
}

INSTANTIATE_TEST_SUITE_P(With, ServedRun,
                         testing::Values(Staleness{"SynchronousSteps", 0}, Staleness{"StepsThatAreApart", 2},
                                         Staleness{"NoBound", -1}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace trireme::test
