#pragma once
// A model of four layers with known costs, and plans for it.

#include "trireme/train/estimate/model_costs.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

constexpr double kMib = 1024 * 1024;

/// Four layers of 1 MiB of parameters. Each saves 10 MiB of activations, and the loss saves nothing.
inline ModelUse four_layers() {
  ModelUse model;
  for (const char* name : {"a", "b", "c", "d"}) {
    model.layers.push_back(
        {.name = name,
         .memory = {.kept = {.forward_s = 1, .inner_bytes = 10 * kMib, .output_bytes = kMib},
                    .forward_bytes = 11 * kMib,
                    .backward_bytes = 2 * kMib,
                    .gradient_bytes = kMib,
                    .largest_gradient_bytes = kMib},
         .parameters = {{.name = name, .bytes = 1 << 20, .numel = 1 << 18}}});
  }
  model.layers.push_back({.name = "loss", .memory = {}});
  return model;
}

inline RunConfig config_of_four() {
  RunConfig config;
  config.data.name = "synthetic";
  config.model.hidden = {8, 8, 8};
  config.train.global_batch = 16;
  config.optimizer.name = "adamw";
  return config;
}

inline ParallelPlan plan_of(const RunConfig& config, int ranks) {
  return resolve_plan(config, ranks).for_model({.name = "four", .parameters = {1, 1, 1, 1}});
}

}  // namespace trireme::train
