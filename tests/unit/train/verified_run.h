#pragma once
// The training task of the tests of verify: four classes of 6 x 6 pixels, and an MLP.

#include "trireme/data/synthetic_dataset.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

inline data::DataSource verified_data() {
  const auto split = [](std::uint64_t number) {
    return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
        .num_samples = 96, .num_classes = 4, .height = 6, .width = 6, .seed = 3, .split = number});
  };
  return {.name = "small", .train = split(0), .test = split(1), .input_shape = {1, 6, 6}, .num_classes = 4};
}

inline RunConfig verified_config() {
  RunConfig config;
  config.model.hidden = {16};
  config.train.global_batch = 24;
  config.optimizer.lr = 0.05;
  config.optimizer.momentum = 0.9;
  return config;
}

}  // namespace trireme::train
