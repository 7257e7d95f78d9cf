#include "trireme/optim/ada_scale.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

/// The gain of 8 reference batches of 16 samples when that was seen in every step so far.
double gain_after(const GradientNoise& noise, std::int64_t steps = 50) {
  AdaScale scale(16);
  for (std::int64_t step = 1; step < steps; ++step) {
    scale.gain(step, 128);
    scale.observe(step, noise, 128);
  }
  return scale.gain(steps, 128);
}

TEST(AdaScale, GainsNothingWithoutNoiseAndAllOfTheScaleWhereThereIsNothingElse) {
  EXPECT_NEAR(gain_after({.of_sample = 0, .signal = 3}), 1, 1e-5);
  EXPECT_DOUBLE_EQ(gain_after({.of_sample = 5, .signal = 0}), 8);
  EXPECT_DOUBLE_EQ(gain_after({.of_sample = 5, .signal = -2}), 8) << "an estimate below zero";
  EXPECT_NEAR(gain_after({.of_sample = -5, .signal = 1e6}), 1, 1e-6) << "the least variance";
}

TEST(AdaScale, GainsAsThePaperSays) {
  const double variance = 48.0 / 16, signal = 1.5;
  EXPECT_DOUBLE_EQ(gain_after({.of_sample = 48, .signal = signal}),
                   (variance + signal) / (variance / 8 + signal));
}

TEST(AdaScale, GainsLessInAStepOfFewerSamples) {
  AdaScale scale(16);
  scale.observe(1, {.of_sample = 5, .signal = 0}, 128);
  EXPECT_DOUBLE_EQ(scale.gain(3, 64), 4);
  EXPECT_DOUBLE_EQ(scale.gain(3, 4), 1) << "a last batch below the reference";
}

TEST(AdaScale, CountsAnEstimateFromTheSecondStepBehindItsOwnHoweverEarlyItCame) {
  AdaScale late(16), early(16);
  const auto noise_of = [](std::int64_t step) {
    return GradientNoise{.of_sample = 10.0 * static_cast<double>(step % 4), .signal = 1.0 + (step == 5)};
  };
  EXPECT_EQ(late.gain(1, 128), 1) << "nothing is known";
  EXPECT_EQ(early.gain(1, 128), 1);
  early.observe(1, noise_of(1), 128);
  for (std::int64_t step = 2; step <= 12; ++step) {
    const double expected = late.gain(step, 128);
    EXPECT_EQ(early.gain(step, 128), expected) << step;
    EXPECT_EQ(expected > 1, step > 2) << step;
    late.observe(step - 1, noise_of(step - 1), 128);  // behind step `step`
    early.observe(step, noise_of(step), 128);         // at its end
  }
}

TEST(AdaScale, GoesOnFromItsStateWithTheSameGains) {
  AdaScale straight(16);
  for (std::int64_t step = 1; step <= 6; ++step) {
    straight.advance(straight.gain(step, 128));
    straight.observe(step, {.of_sample = 3.0 * static_cast<double>(step), .signal = 1}, 128);
  }
  AdaScale resumed(16);
  resumed.restore(straight.state());
  for (std::int64_t step = 7; step <= 9; ++step) {
    const double gain = straight.gain(step, 128);
    EXPECT_EQ(resumed.gain(step, 128), gain);
    for (AdaScale* scale : {&straight, &resumed}) {
      scale->advance(gain);
      scale->observe(step, {.of_sample = 1, .signal = 2}, 128);
    }
  }
  EXPECT_EQ(straight.progress(), resumed.progress());
  EXPECT_GT(straight.progress(), 9);
}

TEST(AdaScale, RefusesToScaleFromNothing) {
  EXPECT_THAT([] { AdaScale scale(0); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("needs a reference_batch")));
}

TEST(AdaScale, KnowsForEachOptimizerWhatAGainDoesToTheRate) {
  EXPECT_EQ(gain_exponent("sgd"), 1);
  for (const char* adaptive : {"adamw", "adam", "adagrad", "rmsprop"})
    EXPECT_EQ(gain_exponent(adaptive), 0.5) << adaptive;
  for (const char* of_one_size : {"lars", "lamb", "lion", "muon"})
    EXPECT_FALSE(gain_exponent(of_one_size).has_value()) << of_one_size;
  for (const std::string& name : optimizer_names()) {
    if (normalises_gradients(name)) continue;
    EXPECT_EQ(gain_exponent(name), 1) << name;
  }
}

}  // namespace
}  // namespace trireme::optim
