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
#include "trireme/model/deferred.h"

namespace trireme::model {
namespace {

namespace fs = std::filesystem;

const ConvolutionShape kNarrow{.in = 64, .out = 16, .height = 4, .width = 4};
const ConvolutionShape kWide{.in = 16, .out = 64, .height = 4, .width = 4};
constexpr ConvolutionWay kAtens{false, ConvolutionKernel::kAten}, kAtensLast{true, ConvolutionKernel::kAten},
    kOnednns{false, ConvolutionKernel::kOnednn}, kProduct{true, ConvolutionKernel::kProduct};

const ConvolutionTimes kFirst{{kAtens, {10, 20.5, 30}}, {kProduct, {1, 2, 3}}};
const ConvolutionTimes kSecond{{kAtens, {11, 21, 31}}, {kProduct, {4, 5, 6}}};
constexpr const char* kHere = "processor: this one\nthreads: 1\n";

CachedTimes cached(const fs::path& folder, const ConvolutionTimes& measured, const char* conditions = kHere,
                   const Convolutions& convolutions = {.shapes = {kNarrow}, .batch = 8}) {
  return cached_convolutions(folder, conditions, convolutions,
                             [&](const ConvolutionShape&, std::int64_t) { return measured; });
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
  EXPECT_EQ(cached(folder_, kFirst).measured_now, 1);
  const CachedTimes again = cached(folder_, kSecond);
  EXPECT_EQ(again.measured_now, 0);
  EXPECT_EQ(again.times, std::vector{kFirst});
  EXPECT_EQ(cached(folder_, kSecond, "processor: another\nthreads: 1\n").times, std::vector{kSecond});
  EXPECT_EQ(cached(folder_, kSecond).times, std::vector{kFirst})
      << "one machine's file was replaced by another's";
}

TEST_F(ConvolutionCache, GrowsByNewShapesAndBatches) {
  cached(folder_, kFirst);
  const CachedTimes more = cached(folder_, kSecond, kHere, {.shapes = {kWide, kNarrow, kWide}, .batch = 8});
  EXPECT_EQ(more.measured_now, 1) << "a shape that the model repeats is measured once";
  EXPECT_EQ(more.times, (std::vector{kSecond, kFirst, kSecond}));
  EXPECT_EQ(cached(folder_, kSecond, kHere, {.shapes = {kNarrow}, .batch = 4}).measured_now, 1);
  EXPECT_EQ(cached(folder_, kSecond).times, std::vector{kFirst});
}

TEST_F(ConvolutionCache, DamagedOrForeignCacheIsMeasuredAgain) {
  cached(folder_, kFirst);
  const fs::path file = only_file(folder_);
  const std::string good = read_file(file);
  std::string changed = good;
  changed[changed.find("205")] = '3';
  const std::string other_conditions = [&] {
    const test::TemporaryFolder elsewhere;
    cached(elsewhere.path(), kFirst, "processor: another\n");
    return read_file(only_file(elsewhere.path()));
  }();
  for (const std::string& content : {std::string(), good.substr(0, good.size() / 2), good.substr(1),
                                     good + good, changed, other_conditions, std::string(5000, '\xff')}) {
    write_file_atomic(file, content);
    const CachedTimes found = cached(folder_, kSecond);
    EXPECT_EQ(found.measured_now, 1) << content;
    EXPECT_EQ(found.times, std::vector{kSecond});
    EXPECT_EQ(cached(folder_, kFirst).times, std::vector{kSecond}) << "the good one did not replace it";
  }
}

TEST_F(ConvolutionCache, UnwritableCacheOnlyCostsMeasurement) {
  write_file_atomic(root_.path() / "below", "a file in the place of the folder");
  for (int i = 0; i < 2; ++i) {
    const CachedTimes found = cached(folder_, kFirst);
    EXPECT_EQ(found.measured_now, 1);
    EXPECT_EQ(found.times, std::vector{kFirst});
    EXPECT_NE(found.not_kept_because, "");
  }
}

TEST_F(ConvolutionCache, WithoutAPlaceNothingIsWritten) {
  const CachedTimes found = cached({}, kFirst);
  EXPECT_EQ(found.measured_now, 1);
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

TEST_F(ConvolutionMeasurement, TimesEachDifferentWayWithoutRandomNumbers) {
  torch::manual_seed(1);
  const at::Tensor expected = at::rand({4});
  torch::manual_seed(1);
  const ConvolutionTimes times = measure_convolution(kNarrow, 2);
  EXPECT_TRUE(at::rand({4}).equal(expected));
  for (const ConvolutionWay& way : {kAtens, kAtensLast, kProduct, kOnednns}) {
    ASSERT_TRUE(times.contains(way)) << static_cast<int>(way.kernel);
    EXPECT_GT(times.at(way).forward_us, 0);
    EXPECT_GT(times.at(way).of_weight_us, 0);
  }
  ConvolutionShape strided = kNarrow;
  strided.stride = {2, 2};
  EXPECT_FALSE(measure_convolution(strided, 2).contains(kOnednns)) << "ATen takes that itself";
}

TEST_F(ConvolutionMeasurement, WithSeveralThreadsIsByTheClock) {
  at::set_num_threads(2);
  EXPECT_GT(measure_convolution(kWide, 2).at(kProduct).sum_us(), 0);
}

TEST(FastestConvolutions, AreChosenPerPassForTenthGain) {
  const ConvolutionTimes times{{kAtens, {100, 100, 100}},
                               {kOnednns, {92, 80, 200}},
                               {kAtensLast, {500, 500, 500}},
                               {kProduct, {10, 600, 600}}};
  const ConvolutionChoice choice = fastest({.shapes = {kNarrow}}, {times});
  EXPECT_FALSE(choice.channels_last);
  EXPECT_EQ(choice.of(kNarrow), (PassKernels{.of_input = ConvolutionKernel::kOnednn}));
}

TEST(FastestConvolutions, MinimizeSumOverModel) {
  const ConvolutionTimes gains{
      {kAtens, {100, 100, 100}}, {kAtensLast, {100, 100, 100}}, {kProduct, {10, 10, 10}}};
  const ConvolutionTimes loses{
      {kAtens, {100, 100, 100}}, {kAtensLast, {400, 400, 400}}, {kProduct, {300, 300, 300}}};
  const ConvolutionChoice once = fastest({.shapes = {kNarrow, kWide}}, {gains, loses});
  EXPECT_FALSE(once.channels_last);
  EXPECT_TRUE(once.is_atens());
  const ConvolutionChoice often =
      fastest({.shapes = {kNarrow, kNarrow, kNarrow, kWide}}, {gains, gains, gains, loses});
  EXPECT_TRUE(often.channels_last);
  EXPECT_EQ(often.of(kNarrow), PassKernels::all(ConvolutionKernel::kProduct));
  EXPECT_EQ(fastest({.shapes = {kNarrow, kWide}, .channels_last = true}, {gains, loses}).channels_last, true);
  EXPECT_TRUE(fastest({.shapes = {kNarrow}, .channels_last = false}, {gains}).is_atens());
}

TEST(FastestConvolutions, OfAlmostNoGainAreContiguous) {
  const ConvolutionTimes same{{kAtens, {100, 100, 100}}, {kAtensLast, {95, 95, 95}}};
  EXPECT_TRUE(fastest({.shapes = {kNarrow}}, {same}).is_atens());
}

TEST(ConvolutionsOfAModel, MatchComputationsWithoutSideEffects) {
  for (const bool with_memory : {true, false}) {
    const auto make = [] { return make_model({.name = "resnet18"}, {3, 32, 32}, 10, /*seed=*/1); };
    const auto resnet = with_memory ? make() : deferred(make);
    const at::Tensor mean = with_memory ? resnet->named_buffers()["bn1.running_mean"].clone() : at::Tensor();
    const Convolutions found = convolutions_of(*resnet, at::rand({4, 3, 32, 32}), 4);
    EXPECT_EQ(found.batch, 4);
    EXPECT_EQ(found.shapes.size(), 20u);
    EXPECT_EQ(to_text(found.shapes.front()), "3>64@32x32k7x7s2x2p3x3");
    EXPECT_EQ(is_deferred(*resnet), !with_memory);
    if (with_memory) {
      EXPECT_TRUE(resnet->named_buffers()["bn1.running_mean"].equal(mean));
      EXPECT_TRUE(resnet->is_training());
    }
  }
  const auto mlp = make_model({.name = "mlp"}, {1, 8, 8}, 10, /*seed=*/1);
  EXPECT_TRUE(convolutions_of(*mlp, at::rand({1, 1, 8, 8}), 1).shapes.empty());
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
