// Runs every input in corpus/NAME through the target NAME, with this build's compiler and without libFuzzer.
// This prevents the return of faults that were found before.

#include <gtest/gtest.h>

#include <map>

#include "tests/fuzz/reading.h"
#include "tests/support/paths.h"
#include "trireme/base/files.h"

#define FUZZ_TARGET(name) extern "C" int fuzz_##name(const std::uint8_t* data, std::size_t size);
#include "fuzz_targets.h"
#undef FUZZ_TARGET

namespace trireme::fuzz {
namespace {

using Target = int (*)(const std::uint8_t*, std::size_t);

const std::map<std::string, Target> kTargets = {
#define FUZZ_TARGET(name) {#name, &fuzz_##name},
#include "fuzz_targets.h"
#undef FUZZ_TARGET
};

class FuzzCorpus : public testing::TestWithParam<std::string> {};

TEST_P(FuzzCorpus, IsReadOrRejected) {
  const std::filesystem::path folder =
      std::filesystem::path(test::checkout("tests/fuzz/corpus")) / GetParam();
  ASSERT_TRUE(std::filesystem::is_directory(folder)) << folder << ": a target begins with a few inputs";
  int inputs = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string input = read_file(file.path());
    SCOPED_TRACE(file.path().string());
    std::cerr << file.path().filename() << '\n';  // the last output if the input ends the process
    EXPECT_NO_THROW(
        kTargets.at(GetParam())(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()));
    ++inputs;
  }
  EXPECT_GT(inputs, 0) << folder;
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& [name, target] : kTargets) result.push_back(name);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpus, testing::ValuesIn(names()),
                         [](const auto& each) { return each.param; });

TEST(FuzzCorpora, BelongToTargets) {
  for (const auto& folder : std::filesystem::directory_iterator(test::checkout("tests/fuzz/corpus")))
    EXPECT_TRUE(kTargets.contains(folder.path().filename().string())) << folder.path();
}

}  // namespace
}  // namespace trireme::fuzz
