#include "trireme/train/config/batch_ramp.h"

#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/train/plan/internal/fixes.h"

namespace trireme::train {

data::BatchRamp batch_ramp(const TrainOptions& train) {
  data::BatchRamp ramp;
  for (std::size_t i = 0; i < train.batch_ramp_sizes.size(); ++i)
    ramp.push_back({.until = train.batch_ramp_steps.at(i), .size = train.batch_ramp_sizes[i]});
  return ramp;
}

data::LastBatch last_batch(const RunConfig& config) {
  return config.data.drop_last ? data::LastBatch::kDropped : data::LastBatch::kSmaller;
}

data::BatchLayout batch_layout(const RunConfig& config, std::int64_t samples) {
  return {samples, config.train.global_batch, batch_ramp(config.train), last_batch(config)};
}

std::int64_t smallest_batch(const TrainOptions& train) {
  return train.batch_ramp_sizes.empty() ? train.global_batch : train.batch_ramp_sizes.front();
}

std::string describe_batches(const TrainOptions& train) {
  std::string words = text(smallest_batch(train));
  for (std::size_t i = 0; i < train.batch_ramp_steps.size(); ++i) {
    const bool is_last = i + 1 == train.batch_ramp_steps.size();
    words += text(", ", is_last ? train.global_batch : train.batch_ramp_sizes[i + 1], " from step ",
                  train.batch_ramp_steps[i] + 1, " on");
  }
  return words;
}

TrainOptions ramp_within(TrainOptions train, std::int64_t steps) {
  std::vector<std::int64_t>&sizes = train.batch_ramp_sizes, &ends = train.batch_ramp_steps;
  if (sizes.empty() || ends.back() < steps) return train;
  const auto come = std::clamp<std::ptrdiff_t>(steps - 1, 0, std::ssize(sizes));
  sizes.erase(sizes.begin(), sizes.end() - come);
  ends.clear();
  for (std::int64_t i = 1; i <= come; ++i) ends.push_back(steps * i / (come + 1));
  return train;
}

void check_batch_ramp(const RunConfig& config) {
  const std::vector<std::int64_t>&sizes = config.train.batch_ramp_sizes,
        &steps = config.train.batch_ramp_steps;
  const Fix none = [](RunConfig& changed) {
    changed.train.batch_ramp_sizes.clear();
    changed.train.batch_ramp_steps.clear();
  };
  const Fix shorter = [](RunConfig& changed) {
    auto& of = changed.train;
    const std::size_t both = std::min(of.batch_ramp_sizes.size(), of.batch_ramp_steps.size());
    of.batch_ramp_sizes.resize(both);
    of.batch_ramp_steps.resize(both);
  };
  reject_unless(
      sizes.size() == steps.size(), {shorter, none}, "train.batch_ramp_sizes has ", sizes.size(),
      sizes.size() == 1 ? " size" : " sizes", ", and train.batch_ramp_steps ", steps.size(),
      steps.size() == 1 ? " step" : " steps",
      ": each size holds until the step at the same place, and train.global_batch from the last one on; "
      "give as many of each");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t before = i == 0 ? 0 : steps[i - 1];
    reject_unless(steps[i] > before, {none}, "train.batch_ramp_steps: batches of ", sizes[i],
                  " samples end after ", steps[i], " steps, and begin after ", before,
                  "; list the steps in rising order");
    const bool is_last = i + 1 == sizes.size();
    const std::int64_t next = is_last ? config.train.global_batch : sizes[i + 1];
    reject_unless(sizes[i] >= 1 && sizes[i] < next, {none}, "train.batch_ramp_sizes: batches of ", sizes[i],
                  " samples are followed by those of ", is_last ? "train.global_batch = " : "", next,
                  "; list the sizes in rising order, each below train.global_batch");
  }
}

}  // namespace trireme::train
