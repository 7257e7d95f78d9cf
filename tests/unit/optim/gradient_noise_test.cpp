#include "trireme/optim/gradient_noise.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

namespace trireme::optim {
namespace {

constexpr std::size_t kDim = 6;
using Vector = std::array<double, kDim>;

constexpr Vector kMean = {0.5, -0.25, 0.125, 0, 1, -0.5}, kDeviation = {1, 2, 0.5, 3, 1.5, 0.25};

double square(const Vector& vector) {
  double sum = 0;
  for (const double value : vector) sum += value * value;
  return sum;
}

/// The squared norms of a step over parts of these sizes, from new random gradients of samples.
GradientSquares squares_of_step(std::mt19937_64& random, const std::vector<int>& parts) {
  std::normal_distribution<double> normal;
  double samples = 0;
  for (const int size : parts) samples += size;
  GradientSquares squares{.shares = 0, .samples = samples};
  Vector mean{};
  for (const int size : parts) {
    Vector part{};
    for (int sample = 0; sample < size; ++sample) {
      for (std::size_t i = 0; i < kDim; ++i) part[i] += (kMean[i] + kDeviation[i] * normal(random)) / samples;
    }
    squares.of_parts += square(part);
    squares.shares += (size / samples) * (size / samples);
    for (std::size_t i = 0; i < kDim; ++i) mean[i] += part[i];
  }
  squares.of_mean = square(mean);
  return squares;
}

class NoiseOfParts : public testing::TestWithParam<std::vector<int>> {};

TEST_P(NoiseOfParts, IsUnbiasedForKnownMeanAndCovariance) {
  std::mt19937_64 random(7);
  constexpr int kSteps = 20000;
  double noise = 0, signal = 0, noise_squares = 0, signal_squares = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto found = estimate_noise(squares_of_step(random, GetParam()));
    ASSERT_TRUE(found.has_value());
    noise += found->of_sample / kSteps;
    signal += found->signal / kSteps;
    noise_squares += found->of_sample * found->of_sample / kSteps;
    signal_squares += found->signal * found->signal / kSteps;
  }
  const auto error = [](double mean, double squares) { return std::sqrt((squares - mean * mean) / kSteps); };
  EXPECT_NEAR(noise, square(kDeviation), 4 * error(noise, noise_squares));
  EXPECT_NEAR(signal, square(kMean), 4 * error(signal, signal_squares));
  EXPECT_LT(error(noise, noise_squares), 0.02 * square(kDeviation)) << "or the test shows nothing";
  EXPECT_LT(error(signal, signal_squares), 0.03 * square(kMean)) << "or the test shows nothing";
}

INSTANTIATE_TEST_SUITE_P(Sizes, NoiseOfParts,
                         testing::Values(std::vector{8, 8}, std::vector{4, 4, 4, 4},
                                         std::vector{1, 9, 2, 4}));

TEST(GradientNoise, NeedsSeveralPartsAndFiniteNumbers) {
  EXPECT_FALSE(estimate_noise({.of_parts = 1, .of_mean = 1, .shares = 1, .samples = 8}).has_value());
  EXPECT_FALSE(
      estimate_noise(
          {.of_parts = std::numeric_limits<double>::infinity(), .of_mean = 1, .shares = 0.5, .samples = 8})
          .has_value());
  EXPECT_TRUE(estimate_noise({.of_parts = 1, .of_mean = 1, .shares = 0.5, .samples = 8}).has_value());
}

TEST(GradientNoise, HasScaleOfEqualNoiseAndSignal) {
  EXPECT_EQ((GradientNoise{.of_sample = 30, .signal = 2}).scale(), 15);
  EXPECT_EQ((GradientNoise{.of_sample = -1, .signal = 2}).scale(), 0) << "rounding, or chance";
  EXPECT_TRUE(std::isinf((GradientNoise{.of_sample = 30, .signal = -0.5}).scale()));
}

TEST(NoiseAverage, FavoursLastPartAndForgetsStart) {
  NoiseAverage average;
  average.add({.of_sample = 5, .signal = 7});
  EXPECT_EQ(average.mean().of_sample, 5);
  EXPECT_EQ(average.mean().signal, 7);
  for (int i = 0; i < 99; ++i) average.add({.of_sample = i < 49 ? 0.0 : 1.0, .signal = 1});
  EXPECT_NEAR(average.mean().of_sample, 1 - std::pow(0.5, 4), 0.01) << "the last half has 15 of 16 parts";
}

TEST(NoiseAverage, ContinuesFromItsState) {
  NoiseAverage straight, resumed;
  for (int i = 0; i < 5; ++i) straight.add({.of_sample = 1.0 / (i + 1), .signal = i * 0.3});
  resumed.restore(straight.state());
  for (NoiseAverage* average : {&straight, &resumed}) average->add({.of_sample = 0.7, .signal = 2});
  EXPECT_EQ(straight.mean().of_sample, resumed.mean().of_sample);
  EXPECT_EQ(straight.mean().signal, resumed.mean().signal);
}

}  // namespace
}  // namespace trireme::optim
