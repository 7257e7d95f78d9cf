// A model over two workers that is trained through RPC, compared with the same model in this process, step by
// step: rpc_pipe [--model NAME] [--chunks N] [--checkpoint never|except_last|always] [--steps N]. Rank 0 is
// the caller.

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/model/deferred.h"
#include "trireme/model/model.h"
#include "trireme/remote/init.h"
#include "trireme/remote/optimizer.h"
#include "trireme/remote/pipe.h"

namespace {

using namespace trireme;

struct Options {
  std::string model = "resnet18";
  std::int64_t chunks = 1, steps = 3;
  remote::PipeCheckpoint checkpoint = remote::PipeCheckpoint::kNever;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--model") options.model = value;
    if (name == "--chunks") options.chunks = std::stol(value);
    if (name == "--steps") options.steps = std::stol(value);
    if (value == "except_last") options.checkpoint = remote::PipeCheckpoint::kExceptLast;
    if (value == "always") options.checkpoint = remote::PipeCheckpoint::kAlways;
  }
  return options;
}

/// The largest difference between the two, relative to the largest value.
double difference(const at::Tensor& a, const at::Tensor& b) {
  const double scale = std::max(b.abs().max().item<double>(), 1e-12);
  return (a - b).abs().max().item<double>() / scale;
}

void train(const rpc::Agent& agent, const Options& options) {
  constexpr std::int64_t kClasses = 10, kBatch = 8;
  constexpr double kRate = 0.01;
  const std::vector<std::int64_t> shape = {3, 32, 32};
  remote::ShardOptions part;
  part.model.name = options.model;
  part.input_shape = shape;
  part.num_classes = kClasses;
  part.seed = 3;
  const auto num_layers = static_cast<std::int64_t>(
      deferred([&] { return model::make_model(part.model, shape, kClasses, part.seed); })->layers().size());
  part.end_layer = num_layers / 2;
  const auto first = remote::make_shard(agent, "worker1", part);
  part.first_layer = part.end_layer;
  part.end_layer = num_layers;
  const auto second = remote::make_shard(agent, "worker2", part);
  const remote::Pipe pipe(agent, {first, second},
                          {.chunks = options.chunks, .checkpoint = options.checkpoint});
  const auto parameters = pipe.parameters();
  remote::DistributedOptimizer optimizer(agent, {.name = "sgd", .lr = kRate, .momentum = 0.9}, parameters);

  const auto serial = model::make_model(part.model, shape, kClasses, part.seed);
  const auto serial_optimizer = [&] {
    optim::NamedTensors named;
    for (const auto& each : serial->named_parameters()) named.emplace_back(each.key(), each.value());
    return optim::make_optimizer({.name = "sgd", .lr = kRate, .momentum = 0.9}, named);
  }();
  const auto names = pipe.parameter_names();
  require(names.size() == serial->parameters().size(), "the pipe has ", names.size(), " parameters");

  torch::manual_seed(1);
  double worst = 0;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const at::Tensor input = torch::randn({kBatch, 3, 32, 32});
    const at::Tensor target =
        torch::one_hot(torch::randint(kClasses, {kBatch}), kClasses).to(torch::kFloat32);
    remote::Context context(agent);
    const at::Tensor loss = torch::mse_loss(*pipe.forward(input).local_value(), target);
    context.backward({loss});
    if (step > 0) optimizer.set_lr(kRate / static_cast<double>(step));
    optimizer.step(context);

    std::vector<at::Tensor> outputs;
    for (const at::Tensor& chunk : input.chunk(options.chunks)) outputs.push_back(serial->forward(chunk));
    const at::Tensor expected = torch::mse_loss(torch::cat(outputs), target);
    serial->zero_grad();
    expected.backward();
    if (step > 0) serial_optimizer->set_lr(kRate / static_cast<double>(step));
    serial_optimizer->step();
    double step_worst = difference(loss.detach(), expected.detach());
    for (std::size_t i = 0; i < names.size(); ++i) {
      const at::Tensor there = parameters[i].to_here();
      step_worst =
          std::max(step_worst, difference(there.detach(), serial->named_parameters()[names[i]].detach()));
    }
    std::printf("step %ld: loss %.6f, alone %.6f, largest difference %.3g\n", static_cast<long>(step),
                loss.item<double>(), expected.item<double>(), step_worst);
    worst = std::max(worst, step_worst);
  }
  std::printf("largest difference of all steps: %.3g\n", worst);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto context = comm::Context::from_environment();
    const auto agent = remote::init(*context, text("worker", context->rank()));
    if (context->is_main()) train(*agent, parse(argc, argv));
    agent->leave();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
