// Properties of all codecs, then those of each codec.

#include "trireme/compress/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "tests/support/codecs.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::compress {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> some_values(std::size_t count, std::uint64_t seed = 1) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = (random.uniform() - 0.5F) * std::exp(8 * random.uniform());
  return values;
}

using Bytes = std::vector<std::byte>;

Bytes encoded(const Codec& codec, std::span<const float> values, const Codec::Options& options = {}) {
  Bytes bytes(codec.most_bytes(values.size(), options));
  bytes.resize(codec.encode(values, options, bytes));
  return bytes;
}

bool isfinite_value(float value) { return std::isfinite(value); }

std::vector<float> decoded(const Codec& codec, const Bytes& bytes, std::size_t count) {
  std::vector<float> values(count, -7);
  EXPECT_TRUE(codec.fits(bytes, count));
  codec.decode(bytes, values);
  return values;
}

std::vector<float> there_and_back(const Codec& codec, const std::vector<float>& values,
                                  const Codec::Options& options = {}) {
  return decoded(codec, encoded(codec, values, options), values.size());
}

std::vector<float> through(const char* name, const std::vector<float>& values, std::uint64_t seed = 1) {
  return there_and_back(*codec(name), values, {.fraction = 0.4, .seed = seed});
}

class EachCodec : public testing::TestWithParam<std::string> {
 protected:
  const Codec& codec_ = *codec(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Codecs, EachCodec, testing::ValuesIn(test::all_codecs()), test::name_of_codec);

/// A codec without a row here takes at most half of the bytes.
TEST_P(EachCodec, TakesTheBytesThatItPromises) {
  constexpr std::size_t kCount = 256 << 10;
  const std::map<std::string, double> shares = {{"fp16", 0.5},    {"bf16", 0.5},    {"int8", 0.2525},
                                                {"qsgd", 0.1275}, {"sign", 0.0316}, {"top-k", 0.01}};
  const auto promised = shares.find(GetParam());
  const double share = promised == shares.end() ? 0.5 : promised->second;
  const Bytes bytes = encoded(codec_, some_values(kCount), {.fraction = 0.005});
  EXPECT_LE(static_cast<double>(bytes.size()), share * kCount * sizeof(float));
}

TEST_P(EachCodec, AddsItsDecodedValues) {
  for (const std::size_t count : {1, 5, 511, 512, 513, 70000}) {
    const std::vector<float> values = some_values(count), before = some_values(count, 2);
    const Bytes bytes = encoded(codec_, values, {.fraction = 0.3});
    const std::vector<float> told = decoded(codec_, bytes, count);
    std::vector<float> sum = before;
    codec_.add(bytes, sum);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], before[i] + told[i]) << i << " of " << count;
  }
}

TEST_P(EachCodec, GivesSameBytesForSameSeed) {
  const std::vector<float> values = some_values(100'000);
  const Bytes one = encoded(codec_, values, {.seed = 5}), again = encoded(codec_, values, {.seed = 5});
  EXPECT_TRUE(std::ranges::equal(one, again));
}

TEST_P(EachCodec, KeepsZeros) {
  for (const std::size_t count : {1, 512, 5000})
    EXPECT_EQ(there_and_back(codec_, std::vector<float>(count)), std::vector<float>(count));
}

/// At any alignment of the bytes. No memory next to the bytes or the values is touched.
TEST_P(EachCodec, DecodesOrRejectsAnyBytesWithinThem) {
  Random random(3);
  int num_fitting = 0, num_rejected = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::size_t count = 1 + random.below(40);
    const Bytes right = encoded(codec_, some_values(count, random.bits()), {.fraction = 0.3});
    auto bytes = std::vector<std::byte>(right.begin(), right.end());
    if (random.below(2) == 0) bytes.resize(random.below(2 * bytes.size() + 1));
    for (std::uint64_t changes = random.below(4); changes > 0 && !bytes.empty(); --changes)
      bytes[random.below(bytes.size())] =
          static_cast<std::byte>(random.below(random.below(2) == 0 ? 4 : 256));
    // In a block of exactly that size, so that a sanitizer detects reads beyond it.
    const auto exact = std::make_unique<std::byte[]>(bytes.size() + 1);
    std::ranges::copy(bytes, exact.get() + 1);
    const std::span<const std::byte> body(exact.get() + 1, bytes.size());
    const bool fits = codec_.fits(body, count);
    ++(fits ? num_fitting : num_rejected);
    if (!fits) continue;
    std::vector<float> guarded(count + 2, 42);
    codec_.decode(body, std::span(guarded).subspan(1, count));
    codec_.add(body, std::span(guarded).subspan(1, count));
    codec_.take_out(body, std::span(guarded).subspan(1, count));
    ASSERT_EQ(guarded.front(), 42);
    ASSERT_EQ(guarded.back(), 42);
  }
  EXPECT_GT(num_fitting, 1000);
  EXPECT_GT(num_rejected, 1000);
}

TEST(Codecs, AreKnownByTheirNames) {
  EXPECT_EQ(codec("none"), nullptr);
  const std::vector<std::string> names = codec_names();
  EXPECT_EQ(names.front(), "none");
  for (const char* name : {"fp16", "bf16", "int8", "qsgd", "sign", "top-k"})
    EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  EXPECT_THROW(codec("fp8"), InvalidArgument);
}

/// Suites take their cases by these properties.
TEST(Codecs, KnowWhatTheyLeaveOutAndSum) {
  for (const char* name : {"sign", "top-k"}) EXPECT_TRUE(codec(name)->leaves_out()) << name;
  for (const char* name : {"fp16", "bf16", "int8", "qsgd"}) EXPECT_FALSE(codec(name)->leaves_out()) << name;
  for (const char* name : {"int8", "sign"}) EXPECT_TRUE(codec(name)->encodes_sums()) << name;
  for (const char* name : {"qsgd", "top-k"}) EXPECT_FALSE(codec(name)->encodes_sums()) << name;
}

// ---- fp16, bf16

float from_bf16(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }
float from_fp16(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const auto mantissa = static_cast<float>(bits & 1023);
  const float sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? kNaN : sign * kInf;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

template <class FromBits>
void expect_nearest_even(const char* name, const FromBits& from_bits, std::uint32_t infinity) {
  std::vector<float> values, expected;
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const float value = from_bits(bits), next = from_bits(bits + 1);
    const float middle =
        bits + 1 == infinity ? value + (value - from_bits(bits - 1)) / 2 : value + (next - value) / 2;
    for (const float sign : {1.0F, -1.0F}) {
      const auto expect = [&](float given, float becomes) {
        values.push_back(sign * given);
        expected.push_back(sign * becomes);
      };
      expect(value, value);
      expect(middle, bits % 2 == 0 ? value : next);
      expect(std::nextafterf(middle, 0), value);
      expect(std::nextafterf(middle, kInf), next);
    }
  }
  values.insert(values.end(), {kInf, -kInf});
  expected.insert(expected.end(), {kInf, -kInf});
  EXPECT_EQ(through(name, values), expected);
  EXPECT_TRUE(std::isnan(through(name, {kNaN})[0]));
}

TEST(Casts, RoundToTheNearestEven) {
  expect_nearest_even("fp16", from_fp16, 0x7c00);
  expect_nearest_even("bf16", from_bf16, 0x7f80);
}

// ---- int8

TEST(Int8Codec, IsAtMostAStepOff) {
  for (const std::size_t count : {1, 2, 511, 512, 513, 1500}) {
    const std::vector<float> values = some_values(count), told = through("int8", values);
    for (std::size_t first = 0; first < count; first += 512) {
      const std::size_t end = std::min(count, first + 512);
      float greatest = 0;
      for (std::size_t i = first; i < end; ++i) greatest = std::max(greatest, std::fabs(values[i]));
      for (std::size_t i = first; i < end; ++i)
        EXPECT_LE(std::fabs(told[i] - values[i]), greatest / 127 * 1.0001F) << i << " of " << count;
    }
  }
}

TEST(Int8Codec, KeepsIntegersWithMaximum127) {
  std::vector<float> values;
  for (int i = -127; i <= 127; ++i) values.push_back(static_cast<float>(i));
  EXPECT_EQ(through("int8", values), values);
}

TEST(Int8Codec, NonFiniteValuesBecomeNaNAlone) {
  const std::vector<float> told = through("int8", {127, kInf, -5, -kInf, 3, kNaN, 0});
  for (const std::size_t i : {1, 3, 5}) EXPECT_TRUE(std::isnan(told[i])) << i;
  EXPECT_EQ(told[0], 127);
  EXPECT_EQ(told[2], -5);
  EXPECT_EQ(told[4], 3);
  EXPECT_EQ(told[6], 0);
  EXPECT_TRUE(std::isnan(through("int8", {kNaN, kInf})[0])) << "a block with nothing finite";
}

TEST(Int8Codec, StaysFiniteOverWholeFloatRange) {
  for (const float greatest : {1e-45F, 1e-40F, FLT_MIN, 100 * FLT_MIN, 1.0F, FLT_MAX / 2, FLT_MAX}) {
    double sum = 0;
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
      const std::vector<float> told = through("int8", {greatest, -greatest, 0}, seed);
      ASSERT_TRUE(std::isfinite(told[0]) && std::isfinite(told[1])) << greatest;
      ASSERT_EQ(told[2], 0);
      ASSERT_LE(static_cast<double>(told[0]), 1.000001 * std::max(greatest, FLT_MIN));
      sum += told[0];
    }
    // Below the smallest normal number a step equals that number, and smaller values are rarely drawn.
    if (greatest >= FLT_MIN) {
      EXPECT_NEAR(sum / 1000 / greatest, 1, 1e-3);
    }
  }
}

// ---- top-k

void expect_greatest(const std::vector<float>& values, double fraction, std::uint64_t seed) {
  const std::vector<float> told =
      there_and_back(*codec("top-k"), values, {.fraction = fraction, .seed = seed});
  std::size_t num_named = 0;
  float min_named = kInf, greatest_left = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (told[i] == 0) {
      greatest_left = std::max(greatest_left, std::fabs(values[i]));
      continue;
    }
    ASSERT_EQ(told[i], values[i]);
    ++num_named;
    min_named = std::min(min_named, std::fabs(values[i]));
  }
  EXPECT_GE(min_named, greatest_left);
  const auto most =
      std::max<std::size_t>(1, static_cast<std::size_t>(fraction * static_cast<double>(values.size())));
  EXPECT_LE(num_named, most);
  EXPECT_GE(2 * num_named, most) << "what a sample missed is made good";
}

TEST(TopKCodec, OmitsNoneLargerThanSentOnes) {
  for (const std::size_t count : {1, 2, 10, 4096, 4097, 65536, 65537, 262144}) {
    const std::vector<float> values = some_values(count, count);
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      expect_greatest(values, 0.005, seed);
      expect_greatest(values, 0.0001, seed);
    }
  }
}

TEST(TopKCodec, SendsExactCountDespiteTiesOrZeros) {
  const auto num_named = [](const std::vector<float>& values) {
    const std::vector<float> told = there_and_back(*codec("top-k"), values, {.fraction = 0.005});
    return std::ranges::count_if(told, [](float value) { return value != 0; });
  };
  EXPECT_EQ(num_named(std::vector<float>(100'000, 2)), 500);
  std::vector<float> few(100'000);
  for (std::size_t i = 0; i < 3; ++i) few[i * 30'001] = 1e-42F;
  EXPECT_EQ(num_named(few), 3) << "a sample does not see them";
}

// ---- stochastic rounding

struct ByChance {
  const char* name;
  double (*greatest_step)(std::span<const float> block);  ///< between two levels
};

double greatest_in(std::span<const float> block) {
  double greatest = 0;
  for (const float value : block) greatest = std::max(greatest, std::fabs(static_cast<double>(value)));
  return greatest;
}
double squares_of(std::span<const float> block) {
  double sum = 0;
  for (const float value : block) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

class RoundingByChance : public testing::TestWithParam<ByChance> {};
INSTANTIATE_TEST_SUITE_P(
    Codecs, RoundingByChance,
    testing::Values(ByChance{"int8", [](std::span<const float> b) { return greatest_in(b) / 127; }},
                    ByChance{"qsgd", [](std::span<const float> b) { return std::sqrt(squares_of(b)) / 7; }}),
    [](const auto& row) { return row.param.name; });

TEST_P(RoundingByChance, IsUnbiasedWithinOneStep) {
  constexpr int kTimes = 20'000;
  std::vector<float> values = some_values(700);
  values[1] = 0;
  values[2] = 1e-30F;
  std::vector<double> sums(values.size());
  double variance = 0;
  for (std::uint64_t seed = 0; seed < kTimes; ++seed) {
    const std::vector<float> told = through(GetParam().name, values, seed);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = static_cast<double>(told[i]) - static_cast<double>(values[i]);
      sums[i] += told[i];
      if (i < 512) variance += error * error / kTimes;
    }
  }
  for (const auto& [begin, end] : {std::pair<std::size_t, std::size_t>{0, 512}, {512, values.size()}}) {
    const double step = GetParam().greatest_step(std::span(values).subspan(begin, end - begin));
    const std::vector<float> told = through(GetParam().name, values);
    for (std::size_t i = begin; i < end; ++i) {
      // The deviation of a draw is at most half a step. The bound is five deviations of the mean.
      ASSERT_NEAR(sums[i] / kTimes, values[i], 5 * 0.5 * step / std::sqrt(kTimes)) << i;
      ASSERT_LE(std::fabs(told[i] - values[i]), step * 1.0001) << i;
    }
  }
  if (std::string(GetParam().name) != "qsgd") return;
  // Alistarh et al., lemma 3.1: with n values and s levels, at most min(n / s^2, sqrt(n) / s) times the sum
  // of their squares.
  EXPECT_LE(variance, std::min(512.0 / 49, std::sqrt(512.0) / 7) * squares_of(std::span(values).first(512)));
}

TEST(Qsgd, NonFiniteBlockBecomesNaNAlone) {
  std::vector<float> values(600, 2);
  values[100] = kInf;
  const std::vector<float> told = through("qsgd", values);
  EXPECT_TRUE(std::ranges::all_of(told.begin(), told.begin() + 512, [](float v) { return std::isnan(v); }));
  EXPECT_TRUE(std::ranges::all_of(told.begin() + 512, told.end(), isfinite_value));
}

// ---- all codecs with residuals

class EachThatLeavesOut : public EachCodec {};
INSTANTIATE_TEST_SUITE_P(Codecs, EachThatLeavesOut, testing::ValuesIn(test::codecs_that_leave_out()),
                         test::name_of_codec);

/// All values and scales are multiples of a power of two, so that their sums are exact.
TEST_P(EachThatLeavesOut, AddsOmittedValuesToNextMessage) {
  Random random(9);
  constexpr std::size_t kCount = 6000;
  std::vector<double> pushed(kCount), arrived(kCount);
  std::vector<float> residual(kCount);
  double greatest = 0;
  for (std::uint64_t step = 0; step < 50; ++step) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto value = static_cast<float>(random.below(2001)) - 1000;
      pushed[i] += value;
      residual[i] += value;
    }
    const Bytes bytes = encoded(codec_, residual, {.fraction = 0.1, .seed = step});
    codec_.take_out(bytes, residual);
    const std::vector<float> told = decoded(codec_, bytes, kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      arrived[i] += told[i];
      greatest = std::max(greatest, static_cast<double>(std::fabs(residual[i])));
    }
  }
  double difference = 0;
  for (std::size_t i = 0; i < kCount; ++i)
    difference = std::max(difference, std::fabs(arrived[i] + residual[i] - pushed[i]));
  EXPECT_LE(difference, 50 * greatest * 0x1p-23) << "the rounding of a subtraction in each step";
  EXPECT_NE(arrived, pushed);
}

TEST_P(EachThatLeavesOut, SendsNonFiniteValuesAndKeepsNone) {
  std::vector<float> residual(10'000, 1);
  residual[77] = kNaN;
  residual[9999] = -kInf;
  for (std::uint64_t seed = 0; seed < 10'000 && !std::ranges::all_of(residual, isfinite_value); ++seed) {
    const Bytes bytes = encoded(codec_, residual, {.fraction = 0.1, .seed = seed});
    const std::vector<float> told = decoded(codec_, bytes, residual.size());
    const std::vector<float> before = residual;
    codec_.take_out(bytes, residual);
    for (const std::size_t place : {77, 9999}) {
      if (!std::isfinite(before[place]) && std::isfinite(residual[place])) {
        EXPECT_FALSE(std::isfinite(told[place])) << "gone without a word: " << place;
      }
    }
  }
  EXPECT_TRUE(std::ranges::all_of(residual, isfinite_value));
}

// ---- sign

TEST(SignCodec, SendsSignsAndMeanMagnitudeOfBlocks) {
  std::vector<float> values(4096, -2);
  values[0] = 4100;  // with this value the mean is 3
  values[1] = 0;
  values.insert(values.end(), {1, -5, 3});
  std::vector<float> expected(4096, -3);
  expected[0] = expected[1] = 3;
  expected.insert(expected.end(), {3, -3, 3});
  EXPECT_EQ(there_and_back(*codec("sign"), values), expected);
}

}  // namespace
}  // namespace trireme::compress
