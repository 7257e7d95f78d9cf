#include "cli/launch/launch_metrics.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "tests/support/resource_limit.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

std::string token_in(const fs::path& file) {
  std::string token;
  std::ifstream(file) >> token;
  return token;
}

TEST(SecurityLaunchMetrics, TokenFileIsPrivateAndKept) {
  const test::TemporaryFolder folder;
  const fs::path file = folder / "token";
  std::string first;
  {
    const LaunchMetrics metrics({.token_file = file.string()});
    first = token_in(file);
    EXPECT_EQ(first.size(), 64U);
    EXPECT_EQ(fs::status(file).permissions(), fs::perms(0600));
    EXPECT_THAT(metrics.describe(), HasSubstr("/metrics with the token in " + file.string()));
    EXPECT_THAT(metrics.describe(), Not(HasSubstr(first)));
  }
  const LaunchMetrics again({.token_file = file.string()});
  EXPECT_EQ(token_in(file), first);
}

TEST(SecurityLaunchMetrics, RejectsTokenFileThatOthersCanRead) {
  const test::TemporaryFolder folder;
  const fs::path file = folder / "token";
  std::ofstream(file) << "a-token-that-is-long-enough\n";
  fs::permissions(file, fs::perms(0644));
  EXPECT_THROW(LaunchMetrics({.token_file = file.string()}), InvalidArgument);
  EXPECT_THROW(LaunchMetrics({.token_file = (folder / "no folder" / "token").string()}), InvalidArgument);
}

TEST(SecurityLaunchMetrics, UnwritableTokenLeavesNoFile) {
  const test::TemporaryFolder folder;
  const fs::path file = folder / "token";
  ::signal(SIGXFSZ, SIG_IGN);
  {
    const test::ResourceLimit no_file_grows(RLIMIT_FSIZE, 0);
    EXPECT_THROW(LaunchMetrics({.token_file = file.string()}), InvalidArgument);
  }
  EXPECT_FALSE(fs::exists(file));
  const LaunchMetrics metrics({.token_file = file.string()});
  EXPECT_EQ(token_in(file).size(), 64U);
}

TEST(SecurityLaunchMetrics, EachStartWithoutFileHasItsToken) {
  const LaunchMetrics one({}), other({});
  const auto token_of = [](const LaunchMetrics& metrics) {
    const std::string words = metrics.describe();
    return words.substr(words.find("?token=") + 7);
  };
  EXPECT_EQ(token_of(one).size(), 64U);
  EXPECT_NE(token_of(one), token_of(other));
}

}  // namespace
}  // namespace trireme::cli
