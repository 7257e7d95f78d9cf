#include "trireme/model/convolution_measurement.h"

#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"

namespace trireme::model {
namespace {

namespace fs = std::filesystem;

const ConvolutionChoice kFirst{.least_batch = {{{1, 8}, {16, 4}, {2, 16}}}};
const ConvolutionChoice kSecond{.least_batch = {{{16, 8}, {16, 16}, {16, 16}}}};
constexpr const char* kHere = "processor: this one\nthreads: 1\n";

CachedChoice cached(const fs::path& folder, const ConvolutionChoice& measured,
                    const char* conditions = kHere) {
  return cached_convolutions(folder, conditions, [&] { return measured; });
}

fs::path only_file(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1u);
  return files.front();
}

class ConvolutionCache : public testing::Test {
 protected:
  const test::TemporaryFolder root_;
  const fs::path folder_ = root_.path() / "below" / "trireme";
};

TEST_F(ConvolutionCache, IsMeasuredOncePerConditions) {
  EXPECT_TRUE(cached(folder_, kFirst).measured_now);
  const CachedChoice again = cached(folder_, kSecond);
  EXPECT_FALSE(again.measured_now);
  EXPECT_EQ(again.choice, kFirst);
  EXPECT_EQ(cached(folder_, kSecond, "processor: another\nthreads: 1\n").choice, kSecond);
  EXPECT_EQ(cached(folder_, kSecond).choice, kFirst) << "one machine's file was replaced by another's";
}

TEST_F(ConvolutionCache, ThatIsDamagedOrForeignIsMeasuredAgain) {
  cached(folder_, kFirst);
  const fs::path file = only_file(folder_);
  const std::string good = read_file(file);
  std::string changed = good;
  changed[changed.find("1 8 16")] = '2';
  const std::string other_conditions = [&] {
    const test::TemporaryFolder elsewhere;
    cached(elsewhere.path(), kFirst, "processor: another\n");
    return read_file(only_file(elsewhere.path()));
  }();
  for (const std::string& content : {std::string(), good.substr(0, good.size() / 2), good.substr(1),
                                     good + good, changed, other_conditions, std::string(5000, '\xff')}) {
    write_file_atomic(file, content);
    const CachedChoice found = cached(folder_, kSecond);
    EXPECT_TRUE(found.measured_now) << content;
    EXPECT_EQ(found.choice, kSecond);
    EXPECT_EQ(cached(folder_, kFirst).choice, kSecond) << "the good one did not replace it";
  }
}

TEST_F(ConvolutionCache, ThatCannotBeWrittenCostsAMeasurementAndNoMore) {
  write_file_atomic(root_.path() / "below", "a file in the place of the folder");
  for (int i = 0; i < 2; ++i) {
    const CachedChoice found = cached(folder_, kFirst);
    EXPECT_TRUE(found.measured_now);
    EXPECT_EQ(found.choice, kFirst);
    EXPECT_NE(found.not_kept_because, "");
  }
}

TEST_F(ConvolutionCache, WithoutAPlaceNothingIsWritten) {
  const CachedChoice found = cached({}, kFirst);
  EXPECT_TRUE(found.measured_now);
  EXPECT_EQ(found.not_kept_because, "");
}

TEST_F(ConvolutionCache, LiesWhereTheXdgSpecificationSays) {
  const char* home = std::getenv("HOME");
  const std::string home_before = home == nullptr ? "" : home;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string cache_before = cache == nullptr ? "" : cache;
  ::setenv("HOME", "/somebody", 1);
  ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
  EXPECT_EQ(convolution_cache_folder(), "/somewhere/trireme");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(convolution_cache_folder(), "/somebody/.cache/trireme");
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("HOME");
  EXPECT_EQ(convolution_cache_folder(), "");
  if (home != nullptr) ::setenv("HOME", home_before.c_str(), 1);
  if (cache != nullptr) ::setenv("XDG_CACHE_HOME", cache_before.c_str(), 1);
}

class ConvolutionMeasurement : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  const int threads_ = at::get_num_threads();
};

TEST_F(ConvolutionMeasurement, FindsAChoiceAndDrawsNoRandomNumbers) {
  torch::manual_seed(1);
  const at::Tensor expected = at::rand({4});
  torch::manual_seed(1);
  const ConvolutionChoice choice = measure_convolutions();
  EXPECT_TRUE(at::rand({4}).equal(expected));
  EXPECT_EQ(convolution_choice_from(to_text(choice)), choice);
}

TEST_F(ConvolutionMeasurement, OfSeveralThreadsHasNothingToDecide) {
  at::set_num_threads(2);
  EXPECT_TRUE(measure_convolutions().is_atens());
}

TEST_F(ConvolutionMeasurement, ConditionsNameProcessorThreadsAndLibrary) {
  const std::string one = convolution_conditions();
  for (const char* word : {"processor: ", "instructions: ", "threads: 1\n", "libtorch: 2."})
    EXPECT_NE(one.find(word), std::string::npos) << one;
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  EXPECT_NE(convolution_conditions(), one) << "other instructions, other kernels";
  ::unsetenv("ONEDNN_MAX_CPU_ISA");
}

}  // namespace
}  // namespace trireme::model
