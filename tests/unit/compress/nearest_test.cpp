// Codecs that round to nearest.

#include "trireme/compress/nearest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::compress {
namespace {

std::vector<float> any_values(std::size_t count) {
  Random random(2);
  std::vector<float> values(count);
  for (float& value : values) value = (random.uniform() - 0.5F) * std::exp(8 * random.uniform());
  return values;
}

std::vector<std::byte> nearest_bytes(const Codec& codec, std::span<const float> values, std::uint64_t seed) {
  std::vector<std::byte> bytes(codec.most_bytes(values.size(), {}));
  bytes.resize(codec.encode(values, {.seed = seed}, bytes));
  return bytes;
}

std::vector<float> to_nearest(const std::vector<float>& values) {
  std::vector<float> told(values.size());
  nearest_codec("int8")->decode(nearest_bytes(*nearest_codec("int8"), values, 1), told);
  return told;
}

TEST(NearestInt8Codec, IsWithinHalfStepAndDrawsNothing) {
  const Codec& nearest = *nearest_codec("int8");
  for (const std::size_t count : {1, 2, 511, 512, 513, 1500}) {
    const std::vector<float> values = any_values(count);
    const std::vector<std::byte> bytes = nearest_bytes(nearest, values, 1);
    EXPECT_EQ(bytes, nearest_bytes(nearest, values, 2));
    std::vector<float> told(count);
    ASSERT_TRUE(codec("int8")->fits(bytes, count));
    codec("int8")->decode(bytes, told);
    for (std::size_t first = 0; first < count; first += 512) {
      const std::size_t end = std::min(count, first + 512);
      float greatest = 0;
      for (std::size_t i = first; i < end; ++i) greatest = std::max(greatest, std::fabs(values[i]));
      for (std::size_t i = first; i < end; ++i)
        EXPECT_LE(std::fabs(told[i] - values[i]), greatest / 254 * 1.0001F) << i << " of " << count;
    }
  }
}

TEST(NearestInt8Codec, KeepsIntegersAndShowsNonFiniteValues) {
  std::vector<float> values;
  for (int i = -127; i <= 127; ++i) values.push_back(static_cast<float>(i));
  EXPECT_EQ(to_nearest(values), values);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[4] = -std::numeric_limits<float>::infinity();
  const std::vector<float> told = to_nearest(values);
  EXPECT_TRUE(std::isnan(told[3]) && std::isnan(told[4]));
  EXPECT_EQ(told[5], values[5]);
}

TEST(NearestCodecs, AreKnownByTheirNames) {
  EXPECT_EQ(nearest_codec("none"), nullptr);
  EXPECT_EQ(nearest_codec("bf16"), codec("bf16"));
  EXPECT_THROW(nearest_codec("sign"), InvalidArgument);
  EXPECT_EQ(nearest_codec_names(), (std::vector<std::string>{"none", "bf16", "fp16", "int8"}));
}

}  // namespace
}  // namespace trireme::compress
