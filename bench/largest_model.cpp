// Question: how much memory does a rank need to train a model with a given configuration? This is one rank of
// the measurement. bench/largest_model.sh searches for the largest model within a budget. The trainer takes
// two steps with a configuration file and --set, on random data of the model's kind. Prints one line of JSON
// on rank 0: the number of parameters, and the memory of the largest rank at its peak, by use.
//
//   bench_largest_model [--smoke] CONFIG.toml [--set KEY=VALUE]...

#include <ATen/ops/randint.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/report/memory_report.h"
#include "trireme/train/step/trainer.h"

namespace {

using namespace trireme;

/// Random characters: every sample is as long as data.block.
class Noise final : public data::Dataset {
 public:
  Noise(std::int64_t size, std::int64_t block) : size_(size), block_(block) {}
  std::int64_t size() const override { return size_; }
  data::Example get(std::int64_t /*index*/) const override {
    return {.input = at::randint(kVocabulary, {block_}, at::kLong),
            .target = at::randint(kVocabulary, {block_}, at::kLong)};
  }
  static constexpr std::int64_t kVocabulary = 65;

 private:
  const std::int64_t size_, block_;
};

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("The memory that a rank needs to train a model.");
  std::string file;
  std::vector<std::string> overrides;
  bool smoke = false;
  app.add_option("CONFIG", file);
  app.add_option("--set", overrides)->allow_extra_args(false);
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);
  train::RunConfig config =
      smoke ? train::parse_run_config(
                  "[model]\nname = \"gpt\"\nlayers = 1\nwidth = 32\n[data]\nname = \"text\"\n"
                  "block = 16\n[train]\nglobal_batch = 4\n",
                  "smoke")
            : train::load_run_config(file, overrides);
  const auto owned = comm::Context::from_environment({.torch_threads = 1});
  comm::Context& context = *owned;
  const std::int64_t samples = 2 * config.train.global_batch;
  const auto noise = std::make_shared<Noise>(samples, config.data.block);
  const data::DataSource data{.name = "noise",
                              .train = noise,
                              .test = noise,
                              .input_shape = {config.data.block},
                              .num_classes = Noise::kVocabulary,
                              .targets_per_sample = config.data.block};
  train::Trainer trainer(config, context, data);
  std::int64_t parameters = 0;
  for (const auto& [name, parameter] : trainer.parameters()) parameters += parameter.numel();
  while (trainer.steps_done() < 2) trainer.step();
  const train::MemoryReport report = train::largest(context, trainer.memory());
  if (!context.is_main()) return 0;
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  nlohmann::json line{{"system", "trireme"},
                      {"ranks", context.world_size()},
                      {"held_by_rank_0", parameters},
                      {"peak_mib", mib(report.at_peak.total())}};
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    line[std::string(name_of(kind)) + "_mib"] = mib(report.at_peak[kind]);
  }
  std::cout << line.dump() << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_largest_model: error: " << error.what() << '\n';
  return 1;
}
