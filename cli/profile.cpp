#include "cli/profile.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/comm/device.h"
#include "trireme/comm/vector_math.h"
#include "trireme/data/dataset.h"
#include "trireme/objective/objective.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/estimate/layer_profile.h"
#include "trireme/train/plan/placement.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

/// Samples of a micro-batch: the requested number, or that of the configuration.
std::int64_t samples_of(const ProfileArguments& arguments, const train::RunConfig& config) {
  if (arguments.samples > 0) return arguments.samples;
  return train::resolve_plan(config, static_cast<int>(train::min_ranks(config))).samples_of_microbatch();
}

Fields input_of(const data::DataSource& data, std::int64_t samples) {
  require(samples <= data.train->size(), "--samples ", samples, ": data set ", data.name, " has ",
          data.train->size());
  return data.train->trial_batch(samples).input;
}

void print_table(const std::vector<plan::Layer>& layers) {
  std::printf("%-24s %12s %12s %14s %14s %14s\n", "layer", "forward ms", "backward ms", "kept KiB",
              "weights KiB", "output KiB");
  for (const plan::Layer& layer : layers) {
    std::printf("%-24s %12.3f %12.3f %14.1f %14.1f %14.1f\n", layer.name.c_str(), 1e3 * layer.forward_s,
                1e3 * layer.backward_s, layer.activation_bytes / 1024, layer.parameter_bytes / 1024,
                layer.output_bytes / 1024);
  }
}

void print_json(const std::vector<plan::Layer>& layers, std::int64_t samples) {
  ordered_json rows = ordered_json::array();
  for (const plan::Layer& layer : layers) {
    rows.push_back({{"layer", layer.name},
                    {"forward_s", layer.forward_s},
                    {"backward_s", layer.backward_s},
                    {"activation_bytes", layer.activation_bytes},
                    {"parameter_bytes", layer.parameter_bytes},
                    {"output_bytes", layer.output_bytes}});
  }
  std::cout << ordered_json{{"samples", samples}, {"threads", at::get_num_threads()}, {"layers", rows}}.dump(
                   2)
            << std::endl;
}

}  // namespace

int run_profile(const Home& home, const ProfileArguments& arguments) {
  train::RunConfig config = train::load_run_config(arguments.file, arguments.overrides, home.registry);
  // Measures layer by layer, as for a pipeline.
  config.parallel.pipeline = std::max<std::int64_t>(config.parallel.pipeline, 2);
  keep_freed_memory();
  comm::settle_vector_math();
  at::set_num_threads(static_cast<int>(std::max<std::int64_t>(config.comm.torch_threads, 1)));
  const data::DataSource data = train::open_data(config);
  const auto objective = train::make_objective(config, {.data = data});
  const auto model = train::make_model(config, data, objective->num_outputs(data));
  const std::int64_t samples = samples_of(arguments, config);
  const c10::DeviceType device = comm::device_type_of(config.comm.device);
  const auto chain = train::layers_in(train::precision_of(config.train.precision), *model, device);
  require(!chain.empty(), "the model of type ", model->name(), " has no layers() to look at one by one");
  const std::vector<plan::Layer> layers =
      train::profile_layers(chain, input_of(data, samples).on(device), static_cast<int>(arguments.repeats));
  arguments.json ? print_json(layers, samples) : print_table(layers);
  if (!arguments.output.empty()) {
    write_file_atomic(arguments.output, plan::to_csv(plan::Profile(layers)));
    if (!arguments.json)
      std::printf("wrote %s, a profile that trireme plan reads\n", arguments.output.c_str());
  }
  return kExitOk;
}

}  // namespace trireme::cli
