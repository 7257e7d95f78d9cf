#pragma once
// Costs of the model of four_layers.h in the form of measurements.

#include "tests/unit/train/four_layers.h"
#include "trireme/train/estimate/measurements.h"

namespace trireme::train {

inline constexpr std::int64_t kNumel = 4 << 18;  ///< of the four layers

/// On 16 samples each layer's forward takes 1 s and its backward 2 s, in two parts of 0.8 and 1.4 s,
/// recomputed 3 s. On 4 samples each takes a quarter. Exchanges on two ranks take 1 s/MiB, messages take no
/// time, and an update takes 1 s for all parameters.
inline Measurements known_costs(const RunConfig& config, int ranks = 1) {
  Measurements measured{
      .model = model_key(resolve_plan(config, ranks)), .costs = {}, .exchanges = {}, .update = {}};
  for (const std::int64_t samples : {4, 16}) {
    ModelUse model = four_layers();
    model.samples = samples;
    const double share = static_cast<double>(samples) / 16;
    for (std::size_t i = 0; i + 1 < model.layers.size(); ++i) {
      model.layers[i].time = {.forward_s = share,
                              .backward_s = 2 * share,
                              .backward_input_s = 0.8 * share,
                              .backward_weight_s = 1.4 * share,
                              .bare_forward_s = share,
                              .recomputed_backward_s = 3 * share};
    }
    measured.costs.push_back(std::move(model));
  }
  const CostLine exchange{.fixed_s = 0, .unit_s = 1 / kMib};
  measured.exchanges = {
      .ranks = 2, .all_reduce = exchange, .reduce_scatter = exchange, .all_gather = exchange, .send = {}};
  measured.update = {.fixed_s = 0, .unit_s = 1.0 / kNumel};
  return measured;
}

inline RunConfig without_clipping() {
  RunConfig config = config_of_four();
  config.train.clip_norm = 0;
  return config;
}

}  // namespace trireme::train
