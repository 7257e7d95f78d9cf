#pragma once
// User-defined loops with a step that is captured in a graph (parallel/graphed_step.h), on any device with
// graphs.

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/stack.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/batch/device_numbers.h"
#include "trireme/comm/context.h"
#include "trireme/model/deferred.h"
#include "trireme/model/model.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/optim/moving_average.h"
#include "trireme/optim/norms.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/graphed_step.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::test {

using parallel::GraphedStep;
using parallel::GraphUse;

inline constexpr std::int64_t kFeatures = 6, kClasses = 3;

struct Net {
  torch::nn::Sequential chain{torch::nn::Linear(kFeatures, 8), torch::nn::ReLU(),
                              torch::nn::Linear(8, kClasses)};
  std::vector<model::Layer> layers = model::layers_of(chain);
  explicit Net(c10::Device device) {
    const at::NoGradGuard no_grad;
    int number = 0;
    for (at::Tensor& parameter : chain->parameters())
      parameter.copy_(
          at::linspace(-0.5, 0.5, parameter.numel()).add(0.01 * ++number).view(parameter.sizes()).sin());
    for (const model::Layer& layer : layers) model::move_to(layer, device);
  }
  optim::NamedTensors parameters() const {
    optim::NamedTensors all;
    for (const auto& item : chain->named_parameters()) all.emplace_back(item.key(), item.value());
    return all;
  }
};

inline Fields batch_of(int number, std::int64_t rows) {
  const at::Tensor input =
      at::linspace(-1, 1, rows * kFeatures).add(0.1 * number).view({rows, kFeatures}).cos();
  const at::Tensor target = at::linspace(0, 100, rows).add(number).to(at::kLong).remainder(kClasses);
  return Fields({{"input", input.pin_memory()}, {"target", target.pin_memory()}});
}

/// The body of a step on a device batch, and a function that runs before each step, given its number; null:
/// none.
using Loop = std::pair<GraphedStep::Body, std::function<void(int)>>;
using MakeLoop = std::function<Loop(comm::Context&)>;

struct FoundLosses {
  std::vector<double> losses;
  std::int64_t replays = 0;
  std::size_t graphs = 0;
  std::string why_not;
};

/// Twelve steps. The last four have fewer samples.
inline FoundLosses train(const std::string& device, GraphUse use, const MakeLoop& make) {
  FoundLosses found;
  comm::run_ranks_as_threads(1,
                             [&](comm::Context& context) {
                               at::manual_seed(7);
                               auto [body, before_step] = make(context);
                               GraphedStep step(context.device(), body, {.use = use, .warm_up = 2});
                               for (int number = 0; number < 12; ++number) {
                                 if (before_step) before_step(number);
                                 const Fields outputs = step(batch_of(number, number < 8 ? 8 : 5));
                                 found.losses.push_back(batch::DeviceNumbers(outputs.at(0)).read().front());
                               }
                               found.replays = step.num_replays();
                               found.graphs = step.num_graphs();
                               found.why_not = step.why_not();
                             },
                             {.device = device});
  return found;
}

inline at::Tensor loss_of(const at::Tensor& output, const Fields& batch) {
  return at::cross_entropy_loss(output, batch.at(1));
}

struct GraphedRow {
  const char* name;
  MakeLoop make;
};

inline const GraphedRow kGraphedRows[] = {
    {"DataParallelWithASchedule",
     [](comm::Context& context) {
       const auto net = std::make_shared<Net>(context.device());
       const auto ddp = std::make_shared<parallel::DistributedDataParallel>(context, net->chain.ptr());
       const std::shared_ptr<optim::Optimizer> optimizer =
           optim::make_optimizer({.name = "adamw", .lr = 0.05}, net->parameters());
       optimizer->keep_lr_on(context.device());
       return Loop(
           [=](const Fields& batch) {
             ddp->zero_grad();
             const at::Tensor loss = loss_of(net->chain->forward(batch.at(0)), batch);
             loss.backward();
             optimizer->step();
             return Fields(loss.detach());
           },
           [=](int number) { optimizer->set_lr(0.05 / (1 + number)); });
     }},
    {"ClippedAndAccumulated",
     [](comm::Context& context) {
       const auto net = std::make_shared<Net>(context.device());
       const std::shared_ptr<optim::Optimizer> optimizer =
           optim::make_optimizer({.name = "sgd", .lr = 0.5, .momentum = 0.9}, net->parameters());
       optimizer->keep_lr_on(context.device());
       return Loop(
           [=](const Fields& batch) {
             net->chain->zero_grad();
             at::Tensor sum;
             for (int part = 0; part < 2; ++part) {
               const at::Tensor loss = loss_of(net->chain->forward(batch.at(0) * (1 + part)), batch);
               loss.backward();
               sum = part == 0 ? loss.detach() : sum + loss.detach();
             }
             std::vector<at::Tensor> gradients;
             for (const at::Tensor& parameter : net->chain->parameters())
               gradients.push_back(parameter.grad());
             const at::Tensor norm = optim::norm_of_norms(at::stack(optim::norms_of(gradients)));
             optim::clip_to_norm(net->parameters(), norm, 0.1);
             optimizer->step();
             return Fields(sum);
           },
           nullptr);
     }},
    {"ScaledSkippedAndAveraged",
     [](comm::Context& context) {
       const auto net = std::make_shared<Net>(context.device());
       const std::shared_ptr<optim::Optimizer> optimizer =
           optim::make_optimizer({.name = "adam", .lr = 0.05}, net->parameters());
       optimizer->keep_lr_on(context.device());
       const auto average = std::make_shared<optim::ExponentialMovingAverage>(net->parameters(), 0.9);
       // Overflows f32 at first.
       const auto scaler = std::make_shared<optim::LossScaler>(
           optim::LossScalerOptions{.initial = 1e39, .factor = 100, .interval = 3, .most = 1e40},
           context.device());
       return Loop(
           [=](const Fields& batch) {
             net->chain->zero_grad();
             const at::Tensor loss = loss_of(net->chain->forward(batch.at(0)), batch);
             (loss * scaler->scale_there().to(at::kFloat)).backward();
             const at::Tensor left_out = optim::unscale_gradients(net->parameters(), scaler->scale_there());
             optimizer->step(left_out.reshape({}));
             average->update(left_out.reshape({}));
             scaler->decide(left_out);
             return Fields(loss.detach());
           },
           nullptr);
     }},
    {"DropoutDrawsAnew",
     [](comm::Context& context) {
       const auto net = std::make_shared<Net>(context.device());
       const std::shared_ptr<optim::Optimizer> optimizer =
           optim::make_optimizer({.name = "sgd", .lr = 0.1}, net->parameters());
       optimizer->keep_lr_on(context.device());
       return Loop(
           [=](const Fields& batch) {
             net->chain->zero_grad();
             const at::Tensor loss =
                 loss_of(net->chain->forward(at::dropout(batch.at(0), 0.5, /*train=*/true)), batch);
             loss.backward();
             optimizer->step();
             return Fields(loss.detach());
           },
           nullptr);
     }},
    {"Sharded",
     [](comm::Context& context) {
       const Net net(context.device());
       const auto sharded = std::make_shared<parallel::FullyShardedDataParallel>(
           context, net.layers, parallel::FullyShardedOptions{});
       const std::shared_ptr<optim::Optimizer> optimizer =
           optim::make_optimizer({.name = "adamw", .lr = 0.05}, sharded->parameters());
       optimizer->keep_lr_on(context.device());
       return Loop(
           [=](const Fields& batch) {
             sharded->zero_grad();
             const at::Tensor output = sharded->forward(batch.at(0));
             const at::Tensor loss = loss_of(output, batch);
             loss.backward();
             optimizer->step();
             return Fields(loss.detach());
           },
           nullptr);
     }},
};

}  // namespace trireme::test
