// Question: what does a step of the trainer cost compared with a bare libtorch loop? Same model, data, batch
// and optimizer on one rank. Both alternate in blocks within one run, so that noise affects both. Prints
// JSON: median seconds per step of each, and the ratio, the median over the pairs.
//
//   bench_step_overhead [--smoke] [--model mlp|cnn] [--batch N] [--blocks N] [--only ours|bare]
//
// --only: one of the loops alone, for a profiler.

#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/median.h"
#include "trireme/data/loader.h"
#include "trireme/train/step/trainer.h"

namespace {

using namespace trireme;

struct Settings {
  std::string model = "cnn";
  std::int64_t batch = 64;
  int blocks = 60;
  int steps = 10;         ///< of one block
  std::string only = {};  ///< empty: both
};

train::RunConfig config_of(const Settings& settings) {
  train::RunConfig config;
  config.data.name = "synthetic";
  config.model.name = settings.model;
  config.train.global_batch = settings.batch;
  config.train.epochs = 1'000'000;
  config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0.9};
  config.train.clip_norm = 0;  // the bare loop does not clip
  config.comm.torch_threads = 1;
  return config;
}

/// A plain libtorch loop over the same loader, model and optimizer.
class BareLoop {
 public:
  BareLoop(const train::RunConfig& config, const data::DataSource& data)
      : model_(model::make_model(config.model, data.input_shape, data.num_classes, 0)),
        loader_(data::indexed(data.train), {.global_batch = config.train.global_batch}) {
    optim::NamedTensors parameters;
    for (const auto& item : model_->named_parameters()) parameters.emplace_back(item.key(), item.value());
    optimizer_ = optim::make_optimizer(config.optimizer, parameters);
  }

  void step() {
    const data::StepBatch batch = loader_.next();
    const data::Example& samples = batch.microbatches.front();
    model_->zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(model_->forward(samples.input), samples.target);
    loss.backward();
    optimizer_->step();
    loss_ += loss.item<double>();
  }

 private:
  std::shared_ptr<model::Model> model_;
  data::Loader loader_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  double loss_ = 0;
};

double thread_cpu_s() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

double seconds_per_step(int steps, const std::function<void()>& step) {
  const double begin_s = thread_cpu_s();
  for (int i = 0; i < steps; ++i) step();
  return (thread_cpu_s() - begin_s) / steps;
}

nlohmann::ordered_json measure(const Settings& settings) {
  const train::RunConfig config = config_of(settings);
  const auto context = comm::Context::join({}, config.comm);
  const data::DataSource data = data::open_data(config.data, static_cast<std::uint64_t>(config.run.seed));
  train::Trainer trainer(config, *context, data);
  BareLoop bare(config, data);
  const auto ours = [&] { settings.only == "bare" ? bare.step() : static_cast<void>(trainer.step()); };
  const auto theirs = [&] { settings.only == "ours" ? static_cast<void>(trainer.step()) : bare.step(); };
  seconds_per_step(settings.steps, ours);
  seconds_per_step(settings.steps, theirs);
  std::vector<double> ours_s, bare_s, ratios;
  for (int block = 0; block < settings.blocks; ++block) {
    bare_s.push_back(seconds_per_step(settings.steps, theirs));
    ours_s.push_back(seconds_per_step(settings.steps, ours));
    ratios.push_back(ours_s.back() / bare_s.back());
  }
  return {{"question", "cost of a trainer step over a bare libtorch loop, one rank, one thread"},
          {"model", settings.model},
          {"batch", settings.batch},
          {"blocks", settings.blocks},
          {"bare_step_cpu_s", median(bare_s)},
          {"trainer_step_cpu_s", median(ours_s)},
          {"ratio_of_best",
           *std::min_element(ours_s.begin(), ours_s.end()) / *std::min_element(bare_s.begin(), bare_s.end())},
          {"ratio", median(ratios)}};
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bool smoke = false;
  CLI::App app("The cost of a trainer step over a bare libtorch loop");
  app.add_flag("--smoke", smoke, "A few steps only, to see that it works");
  app.add_option("--model", settings.model, "mlp or cnn");
  app.add_option("--batch", settings.batch, "Samples per step");
  app.add_option("--blocks", settings.blocks, "Pairs of blocks");
  app.add_option("--only", settings.only, "One of the loops in the place of both")
      ->check(CLI::IsMember({"ours", "bare"}));
  CLI11_PARSE(app, argc, argv);
  if (smoke) settings.blocks = settings.steps = 2;
  std::cout << measure(settings).dump(2) << std::endl;
}
