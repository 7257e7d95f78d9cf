// Question: does a rank of a pipeline need the memory that its program predicts? The program counts the
// micro-batches whose activations are held at the same time (schedule::simulate, peak_activations).
// Activation bytes of a stage are measured layer by layer. They are compared with the peak of the bytes that
// the rank allocated in a step. Gradients of parameters, allocated before, do not count. Runs on any number
// of ranks. Prints one line of JSON on rank 0, with the worst ratio of all ranks.
//
//   bench_pipeline_memory [--smoke] [--model gpt|resnet18] [--schedule NAME]

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/model/model.h"
#include "trireme/parallel/allocated_bytes.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/schedule/simulate.h"
#include "trireme/train/estimate/layer_profile.h"

namespace {

using namespace trireme;

constexpr int kMicrobatches = 8;

at::Tensor loss(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits.flatten(0, -2), target.flatten());
}

/// Peak bytes that the program predicts for this rank: the live micro-batches of each action.
double program_bytes(const parallel::Pipeline& pipe, int rank, const std::vector<plan::Layer>& costs) {
  std::map<int, double> of_stage;
  for (std::size_t stage = 0; stage < pipe.stages().size(); ++stage) {
    for (int layer = pipe.stages()[stage].first; layer < pipe.stages()[stage].last; ++layer)
      of_stage[static_cast<int>(stage)] += costs[static_cast<std::size_t>(layer)].activation_bytes;
  }
  double live = 0, most = 0;
  for (const schedule::Action& action : pipe.program().ranks[static_cast<std::size_t>(rank)]) {
    using schedule::ActionKind;
    if (action.kind == ActionKind::kForward) live += of_stage[action.stage];
    most = std::max(most, live);
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight)
      live -= of_stage[action.stage];
  }
  return most;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("A pipeline's memory.");
  std::string model_name = "gpt", schedule = "1f1b";
  bool smoke = false;
  app.add_option("--model", model_name)->check(CLI::IsMember({"gpt", "resnet18"}));
  app.add_option("--schedule", schedule);
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);

  const auto context = comm::Context::from_environment({.torch_threads = 1});
  const bool is_gpt = model_name == "gpt";
  const std::int64_t size = smoke ? 1 : 16, batch = size * kMicrobatches;
  const auto model = is_gpt ? model::make_model({.name = "gpt"}, {64}, 65, /*seed=*/1)
                            : model::make_model({.name = "resnet18"}, {3, 32, 32}, 10, /*seed=*/1);
  const at::Tensor input = is_gpt ? at::randint(65, {batch, 64}, at::kLong) : at::randn({batch, 3, 32, 32});
  const at::Tensor target =
      is_gpt ? at::randint(65, {batch, 64}, at::kLong) : at::randint(10, {batch}, at::kLong);
  const std::vector<plan::Layer> costs = train::profile_layers(model->layers(), input.slice(0, 0, size), 1);
  parallel::Pipeline pipe(*context, model->layers(),
                          {.schedule = schedule, .num_microbatches = kMicrobatches});

  pipe.step(input, target, loss);  // allocates the gradients of parameters
  const parallel::AllocatedBytes allocated;
  pipe.step(input, target, loss);
  const double predicted = program_bytes(pipe, context->rank(), costs);
  const double found = static_cast<double>(allocated.peak());
  const auto all = context->world().all_gather_text(nlohmann::json{
      {"rank", context->rank()},
      {"program_mib", predicted / 1048576},
      {"peak_mib", found / 1048576},
      {"ratio", found / predicted}}.dump());
  if (!context->is_main()) return 0;
  nlohmann::json ranks = nlohmann::json::array();
  for (const std::string& each : all) ranks.push_back(nlohmann::json::parse(each));
  std::cout << nlohmann::json{{"model", model_name}, {"schedule", schedule}, {"ranks", ranks}}.dump()
            << std::endl;
  return 0;
} catch (const trireme::Error& error) {
  std::cerr << error.what() << std::endl;
  return error.exit_code();
}
