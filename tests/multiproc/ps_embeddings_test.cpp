// The example of docs/parameter-server.md converges, over two workers and two servers.

#include <gmock/gmock.h>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"

namespace trireme::test {
namespace {

/// The number after `words` in `text`; -1: it is not there.
double number_behind(const std::string& words, const std::string& text) {
  const std::size_t at = text.find(words);
  return at == std::string::npos ? -1 : std::stod(text.substr(at + words.size()));
}

TEST(PsEmbeddings, ComeNearBestPossibleRanking) {
  const ChildResult result =
      run({bin("trireme"), "launch", "-n", "2", "--servers", "2", "--", bin("example_ps_embeddings")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const double reached = number_behind("AUC ", result.out), best = number_behind("the best is ", result.out);
  EXPECT_GT(best, 0.8) << result.out;
  EXPECT_GT(reached, best - 0.05) << result.out;
  EXPECT_LT(reached, best) << result.out;
}

TEST(PsEmbeddings, FailWithoutLauncherAndNameTheCommand) {
  const ChildResult result =
      run({bin("example_ps_embeddings")}, {{"RANK", ""}, {"TRIREME_PS_COORDINATOR", ""}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, testing::HasSubstr("trireme launch -n N --servers M"));
}

TEST(PsEmbeddings, StandardExceptionIsLineAndExitCode) {
  const ChildResult result = run({bin("example_ps_embeddings"), "many"});
  EXPECT_EQ(result.exit_code, 70) << "signal " << result.signal;
  EXPECT_EQ(result.err, "example_ps_embeddings: error: stoull\n");
}

}  // namespace
}  // namespace trireme::test
