// Tests reuse the reference runs of other tests only if the arguments, the program and the files are the
// same.

#include "tests/support/remembered_run.h"

#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

TEST(RememberedRun, IsTrainedAnewForAnotherFileVersion) {
  const TemporaryFolder folder;
  const std::string config = (folder / "few.toml").string();
  const auto trained = [&] {
    return remembered_run({bin("trireme-torch"), "train", config, "--set", "run.log_every_steps=1"});
  };
  const std::string quick = read_file(checkout("examples/quick.toml"));
  const auto with_steps = [&](int steps) {
    std::string words = quick;
    const std::string epochs = "epochs = 2";
    words.replace(words.find(epochs), epochs.size(), text(epochs, "\nmax_steps = ", steps));
    write_file_atomic(config, words);
  };
  with_steps(2);
  const TrainedRun first = trained();
  EXPECT_EQ(first.steps, 2);
  EXPECT_EQ(trained().weights, first.weights);
  with_steps(13);
  EXPECT_EQ(trained().steps, 13);
}

}  // namespace
}  // namespace trireme::test
