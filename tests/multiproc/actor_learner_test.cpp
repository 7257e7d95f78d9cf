// examples/actor_learner.cpp: actors join and leave while the learner trains.

#include <gmock/gmock.h>

#include <csignal>
#include <map>
#include <memory>
#include <string>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

/// The rest of the line after `words` in `text`.
std::string behind(const std::string& words, const std::string& text) {
  const std::size_t at = text.find(words);
  if (at == std::string::npos) return "";
  return text.substr(at + words.size(), text.find('\n', at) - at - words.size());
}

TEST(ActorLearner, LearnsWhileActorsDieAndJoin) {
  // The learner continues until four actors have taken part. So three are running when one of them is killed.
  ChildProcess learner({bin("example_actor_learner"), "4"});
  ASSERT_TRUE(learner.wait_for_output("\n", 60)) << learner.wait(0).err;
  const std::string address = behind("learner at ", learner.output());
  std::map<std::string, std::unique_ptr<ChildProcess>> actors;
  const auto start = [&](const std::string& name) {
    actors[name] =
        std::make_unique<ChildProcess>(std::vector<std::string>{bin("example_actor_learner"), address, name});
  };
  for (const char* const name : {"ada", "ben", "cleo"}) start(name);
  for (const auto& [name, actor] : actors) {
    ASSERT_TRUE(learner.wait_for_output(name + " takes part", 60)) << actor->wait(0).err;
  }
  actors["ben"]->send_signal(SIGKILL);
  EXPECT_EQ(actors["ben"]->wait(60).signal, SIGKILL) << "it was to be at work";
  ASSERT_TRUE(learner.wait_for_output("worker 'ben' has ended", 60));
  start("dora");

  const ChildResult result = learner.wait(120);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const double before = std::stod(behind("reward before: ", result.out));
  const double after = std::stod(behind("reward after: ", result.out));
  EXPECT_LT(before, 0.4) << result.out;
  EXPECT_GT(after, 0.85) << result.out;
  for (const char* const name : {"ada", "ben", "cleo", "dora"}) {
    EXPECT_THAT(result.out, testing::ContainsRegex(text("\n", name, ": [1-9][0-9]* trajectories\n")));
    if (name == std::string("ben")) continue;
    EXPECT_EQ(actors[name]->wait(60).exit_code, 0) << actors[name]->wait(0).err;
  }
}

}  // namespace
}  // namespace trireme::test
