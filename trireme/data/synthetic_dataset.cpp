#include "trireme/data/synthetic_dataset.h"

#include <ATen/ops/empty.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::data {
namespace {

constexpr std::uint64_t kPatternKey = Random::key_of("synthetic pattern");
constexpr std::uint64_t kSampleKey = Random::key_of("synthetic sample");

/// Uniform with mean 0 and variance 1.
float centred(Random& random) { return (random.uniform() - 0.5F) * 3.4641016F; }

}  // namespace

SyntheticDataset::SyntheticDataset(const SyntheticOptions& options) : options_(options) {
  require(options.num_samples > 0 && options.num_classes > 0 && options.height > 0 && options.width > 0,
          "a synthetic data set needs samples, classes, height and width, not ", options.num_samples, ", ",
          options.num_classes, ", ", options.height, ", ", options.width);
  patterns_.resize(static_cast<std::size_t>(options.num_classes * options.height * options.width));
  Random random(options.seed, kPatternKey);
  for (float& value : patterns_) value = centred(random);
}

Example SyntheticDataset::get(std::int64_t index) const {
  require(index >= 0 && index < size(), "sample ", index, " of the synthetic data was asked for, it has ",
          size());
  Random random(options_.seed, kSampleKey, options_.split, index);
  const auto label =
      static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(options_.num_classes)));
  const std::int64_t pixels = options_.height * options_.width;
  Example example{at::empty({1, options_.height, options_.width}, at::kFloat), at::empty({}, at::kLong)};
  float* input = example.input->data_ptr<float>();
  const float* pattern = patterns_.data() + label * pixels;
  // The pattern at half amplitude, plus noise: the classes overlap in single pixels but not as a whole.
  for (std::int64_t i = 0; i < pixels; ++i) input[i] = 0.5F * pattern[i] + centred(random);
  *example.target->data_ptr<std::int64_t>() = label;
  return example;
}

}  // namespace trireme::data
