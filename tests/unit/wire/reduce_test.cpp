#include "trireme/wire/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

template <class T>
std::vector<T> reduced(Element element, Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> first(inputs[0].size());
  std::vector<T> second(inputs[0].size());
  std::byte* targets[] = {reinterpret_cast<std::byte*>(first.data()),
                          reinterpret_cast<std::byte*>(second.data())};
  reduce(element, reduction, sources, targets, first.size());
  EXPECT_EQ(0, std::memcmp(first.data(), second.data(), first.size() * sizeof(T)));
  return first;
}

template <class T>
void expect_serial(Element element) {
  constexpr std::size_t kCount = 2500;
  std::vector<std::vector<T>> inputs(3, std::vector<T>(kCount));
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t i = 0; i < kCount; ++i)
      inputs[r][i] = static_cast<T>(static_cast<double>((i * (r + 3)) % 101) - 50.3);
  const auto sum = reduced(element, Reduction::kSum, inputs);
  const auto average = reduced(element, Reduction::kAverage, inputs);
  const auto least = reduced(element, Reduction::kMin, inputs);
  const auto most = reduced(element, Reduction::kMax, inputs);
  const auto product = reduced(element, Reduction::kProduct, inputs);
  for (std::size_t i = 0; i < kCount; ++i) {
    const T a = inputs[0][i];
    const T b = inputs[1][i];
    const T c = inputs[2][i];
    ASSERT_EQ(sum[i], static_cast<T>(a + b) + c) << i;
    ASSERT_EQ(average[i], static_cast<T>(static_cast<T>(static_cast<T>(a + b) + c) / 3)) << i;
    ASSERT_EQ(least[i], std::min({a, b, c})) << i;
    ASSERT_EQ(most[i], std::max({a, b, c})) << i;
    ASSERT_EQ(product[i], static_cast<T>(a * b) * c) << i;
  }
}

TEST(Reduce, MatchesSerialComputationForFullWidth) {
  expect_serial<float>(Element::kF32);
  expect_serial<double>(Element::kF64);
  expect_serial<std::int32_t>(Element::kI32);
  expect_serial<std::int64_t>(Element::kI64);
}

float f32_of_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return mantissa != 0 ? std::nanf("") : sign * std::numeric_limits<float>::infinity();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

TEST(Reduce, KeepsF16ValuesOfSingleSource) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto result = reduced<std::uint16_t>(Element::kF16, Reduction::kSum, {all});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(f32_of_f16(all[i])))
      ASSERT_TRUE(std::isnan(f32_of_f16(result[i]))) << i;
    else
      ASSERT_EQ(result[i], all[i]) << i;
  }
}

TEST(Reduce, RoundsF16SumsToNearestEven) {
  // Every tenth pair of positive values, compared with the neighbors of the exact sum (exact in f64).
  std::vector<std::uint16_t> a;
  std::vector<std::uint16_t> b;
  for (std::uint32_t i = 0; i < 0x7c00; i += 37)
    for (std::uint32_t j = i; j < 0x7c00; j += 997) {
      a.push_back(static_cast<std::uint16_t>(i));
      b.push_back(static_cast<std::uint16_t>(j));
    }
  const auto sum = reduced<std::uint16_t>(Element::kF16, Reduction::kSum, {a, b});
  for (std::size_t k = 0; k < a.size(); ++k) {
    const double exact = static_cast<double>(f32_of_f16(a[k]) + f32_of_f16(b[k]));
    const std::uint16_t found = sum[k];
    if (exact >= 65520) {
      ASSERT_EQ(found, 0x7c00) << exact;
      continue;
    }
    const double here = std::abs(static_cast<double>(f32_of_f16(found)) - exact);
    for (const int step : {-1, 1}) {
      const auto next = static_cast<std::uint16_t>(found + step);
      if ((found == 0 && step < 0) || next >= 0x7c00) continue;
      const double there = std::abs(static_cast<double>(f32_of_f16(next)) - exact);
      ASSERT_TRUE(here < there || (here == there && found % 2 == 0)) << exact << " became " << found;
    }
  }
}

TEST(Reduce, AddsBf16InF32AndRoundsOnce) {
  const auto bf16 = [](float value) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  };
  // In bf16, 256 + 1 is 256 again. Three summands with a single rounding give 258.
  const std::vector<std::vector<std::uint16_t>> inputs = {{bf16(256)}, {bf16(1)}, {bf16(1)}};
  EXPECT_EQ(reduced(Element::kBf16, Reduction::kSum, inputs)[0], bf16(258));
}

TEST(Reduce, MinimumAndMaximumPropagateNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> inputs = {{nan, 1}, {1, nan}};
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax})
    for (const float value : reduced(Element::kF32, reduction, inputs)) EXPECT_TRUE(std::isnan(value));
}

TEST(Reduce, AveragesAreExactDivisions) {
  using Limits = std::numeric_limits<float>;
  std::vector<float> values = {0.0F, -0.0F, 1.0F, 0.1F, -3.7F, 1e-30F, Limits::min(), Limits::max() / 8};
  for (int i = 1; i < 40; ++i) values.push_back(static_cast<float>(i) * Limits::denorm_min());
  for (std::size_t num_sources = 1; num_sources <= 9; ++num_sources) {
    std::vector<std::vector<float>> inputs(num_sources, values);
    for (std::size_t r = 0; r < num_sources; ++r)
      std::rotate(inputs[r].begin(), inputs[r].begin() + r, inputs[r].end());
    const auto sum = reduced(Element::kF32, Reduction::kSum, inputs);
    const auto average = reduced(Element::kF32, Reduction::kAverage, inputs);
    for (std::size_t i = 0; i < sum.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(average[i]),
                std::bit_cast<std::uint32_t>(sum[i] / static_cast<float>(num_sources)))
          << num_sources << " sources, sum " << sum[i];
  }
}

TEST(Reduce, WritesSameIntoAllAliasedTargets) {
  constexpr std::size_t kCount = 2500;
  for (std::size_t size = 1; size <= 5; ++size) {
    std::vector<std::vector<double>> tensors(size, std::vector<double>(kCount));
    for (std::size_t r = 0; r < size; ++r)
      for (std::size_t i = 0; i < kCount; ++i) tensors[r][i] = static_cast<double>(i % 13 + r);
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> targets;
    for (auto& tensor : tensors) {
      targets.push_back(reinterpret_cast<std::byte*>(tensor.data()));
      sources.push_back(targets.back());
    }
    reduce(Element::kF64, Reduction::kSum, sources, targets, kCount);
    for (const auto& tensor : tensors)
      for (std::size_t i = 0; i < kCount; ++i)
        ASSERT_EQ(tensor[i],
                  static_cast<double>(size * (i % 13)) + static_cast<double>(size * (size - 1)) / 2)
            << size << " " << i;
  }
}

TEST(Reduce, RejectsTypesThatHaveNoSum) {
  std::vector<std::uint8_t> values(4);
  EXPECT_THROW(reduced<std::uint8_t>(Element::kBool, Reduction::kSum, {values, values}), InvalidArgument);
}

}  // namespace
}  // namespace trireme::wire
