#include "trireme/train/config/batch_ramp.h"

#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/train/plan/internal/fixes.h"

namespace trireme::train {

std::vector<std::string> batch_ramp_names() { return {"steps", "noise"}; }

bool grows_with_noise(const TrainOptions& train) { return train.batch_ramp_by == "noise"; }

data::BatchRamp ramp_so_far(const TrainOptions& train, std::span<const std::int64_t> ends) {
  data::BatchRamp ramp;
  for (std::size_t i = 0; i < ends.size(); ++i)
    ramp.push_back({.until = ends[i], .size = train.batch_ramp_sizes.at(i)});
  if (ends.size() < train.batch_ramp_sizes.size())
    ramp.push_back({.until = data::BatchLayout::kMaxSteps, .size = train.batch_ramp_sizes[ends.size()]});
  return ramp;
}

TrainOptions without_ramp(TrainOptions train) {
  train.batch_ramp_sizes = train.batch_ramp_steps = {};
  train.batch_ramp_by = TrainOptions().batch_ramp_by;
  return train;
}

data::BatchRamp batch_ramp(const TrainOptions& train) {
  if (grows_with_noise(train)) return ramp_so_far(train, {});
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
  if (grows_with_noise(train))
    return text(words, ", up to ", train.global_batch, " as the gradient noise scale grows");
  for (std::size_t i = 0; i < train.batch_ramp_steps.size(); ++i) {
    const bool is_last = i + 1 == train.batch_ramp_steps.size();
    words += text(", ", is_last ? train.global_batch : train.batch_ramp_sizes[i + 1], " from step ",
                  train.batch_ramp_steps[i] + 1, " on");
  }
  return words;
}

TrainOptions ramp_within(TrainOptions train, std::int64_t steps) {
  std::vector<std::int64_t>&sizes = train.batch_ramp_sizes, &ends = train.batch_ramp_steps;
  train.batch_ramp_by = TrainOptions().batch_ramp_by;
  if (sizes.empty() || (!ends.empty() && ends.back() < steps)) return train;
  const auto come = std::clamp<std::ptrdiff_t>(steps - 1, 0, std::ssize(sizes));
  sizes.erase(sizes.begin(), sizes.end() - come);
  ends.clear();
  for (std::int64_t i = 1; i <= come; ++i) ends.push_back(steps * i / (come + 1));
  return train;
}

namespace {

void check_growth(const RunConfig& config, const Fix& none) {
  const TrainOptions& train = config.train;
  const auto reject_if = [&](bool found, const auto&... reason) {
    reject_unless(!found, {none}, "train.batch_ramp_by = \"noise\": ", reason...);
  };
  reject_if(
      train.batch_ramp_sizes.empty(),
      "expected the sizes before train.global_batch in train.batch_ramp_sizes, found none; list them in "
      "rising order");
  reject_if(!train.batch_ramp_steps.empty(),
            "the measured noise decides when a size ends, and train.batch_ramp_steps has ",
            train.batch_ramp_steps.size(), train.batch_ramp_steps.size() == 1 ? " step" : " steps",
            "; leave that key out");
  reject_if(train.noise_scale_every_steps == 0,
            "the noise is not measured; set train.noise_scale_every_steps, for example to 10");
  reject_if(train.max_steps == 0 && config.learning_rate.schedule != "constant", "lr.schedule = \"",
            config.learning_rate.schedule,
            "\" follows the steps of the run, whose number depends on the batches; set train.max_steps");
}

}  // namespace

void check_batch_ramp(const RunConfig& config) {
  const std::vector<std::int64_t>&sizes = config.train.batch_ramp_sizes,
        &steps = config.train.batch_ramp_steps;
  const Fix none = [](RunConfig& changed) { changed.train = without_ramp(changed.train); };
  const Fix shorter = [](RunConfig& changed) {
    auto& of = changed.train;
    const std::size_t both = std::min(of.batch_ramp_sizes.size(), of.batch_ramp_steps.size());
    of.batch_ramp_sizes.resize(both);
    of.batch_ramp_steps.resize(both);
  };
  const bool by_noise = grows_with_noise(config.train);
  if (by_noise) {
    check_growth(config, none);
  } else {
    reject_unless(
        sizes.size() == steps.size(), {shorter, none}, "train.batch_ramp_sizes has ", sizes.size(),
        sizes.size() == 1 ? " size" : " sizes", ", and train.batch_ramp_steps ", steps.size(),
        steps.size() == 1 ? " step" : " steps",
        ": each size holds until the step at the same place, and train.global_batch from the last one on; "
        "give as many of each");
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t before = i == 0 ? 0 : steps[i - 1];
    reject_unless(steps[i] > before, {none}, "train.batch_ramp_steps: batches of ", sizes[i],
                  " samples end after ", steps[i], " steps, and begin after ", before,
                  "; list the steps in rising order");
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool is_last = i + 1 == sizes.size();
    const std::int64_t next = is_last ? config.train.global_batch : sizes[i + 1];
    reject_unless(sizes[i] >= 1 && sizes[i] < next, {none}, "train.batch_ramp_sizes: batches of ", sizes[i],
                  " samples are followed by those of ", is_last ? "train.global_batch = " : "", next,
                  "; list the sizes in rising order, each below train.global_batch");
  }
}

}  // namespace trireme::train
