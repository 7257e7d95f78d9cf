#include "trireme/train/verify.h"

#include <ATen/Parallel.h>

#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/train/model_state.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

optim::NamedTensors copies(const optim::NamedTensors& tensors) {
  optim::NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    result.emplace_back(name, tensor.defined() ? tensor.detach().clone() : tensor);
  }
  return result;
}

/// What one trainer did in a step.
struct Done {
  optim::NamedTensors gradients, weights;
  double loss = 0;
};

class Recorder {
 public:
  Recorder(const RunConfig& config, comm::Context& context, const data::DataSource& data,
           const ModelFactory& make_own)
      : trainer_(config, context, data, make_own ? make_own() : nullptr) {
    trainer_.on_gradients(
        [this](const optim::NamedTensors& gradients) { done_.gradients = copies(gradients); });
  }

  const Done& step() {
    done_ = {};
    trainer_.step();
    done_.loss = trainer_.last_report()->loss;
    done_.weights = copies(trainer_.parameters());
    return done_;
  }
  /// Weights, buffers and optimizer state become those of the other.
  void take_over(Recorder& other) {
    copy_all(state_of(trainer_.model()), state_of(other.trainer_.model()));
    copy_all(trainer_.state(), other.trainer_.state());
  }
  Trainer& trainer() { return trainer_; }

 private:
  static void copy_all(const checkpoint::TensorMap& to, const checkpoint::TensorMap& from) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : to) at::Tensor(tensor).copy_(from.at(name));
  }

  Trainer trainer_;
  Done done_;
};

/// The same run on one rank: one micro-batch for each part of the parallel one.
RunConfig serial_config(const RunConfig& config, int world_size) {
  RunConfig serial = config;
  serial.train.accumulation *= world_size;
  serial.parallel = {.bucket_mib = config.parallel.bucket_mib};
  serial.comm.backend = "auto";
  serial.comm.torch_threads = at::get_num_threads();
  return serial;
}

/// The ranks whose weights are not rank 0's.
void compare_replicas(Comparison& comparison, std::int64_t step, comm::Group group, Trainer& trainer) {
  optim::NamedTensors parameters = trainer.parameters();
  const checkpoint::TensorMap weights(parameters.begin(), parameters.end());
  const auto digests = group.all_gather_text(checkpoint::xxh3_of(weights));
  for (int rank = 1; rank < group.size(); ++rank) {
    comparison.replicas(step, rank, digests[static_cast<std::size_t>(rank)] == digests.front());
  }
}

}  // namespace

Bounds bounds_of(const RunConfig& config, int world_size, const std::string& backend) {
  const std::int64_t parts = world_size * config.train.accumulation;
  const bool adaptive = config.optimizer.name != "sgd";
  const bool in_rank_order = config.train.accumulation == 1 && (backend == "shm" || backend == "threads");
  if (config.parallel.compression != "none") {
    // 8 significant bits of bf16, 11 of f16, of each of the addends.
    const double gradient = config.parallel.compression == "bf16" ? 0x1p-7 : 0x1p-10;
    return {.loss = 1e-6,
            .gradient = gradient,
            .weight = adaptive ? 0.5 : 4 * gradient,
            .reason = text("gradients travel as ", config.parallel.compression)};
  }
  if (parts <= 2 || in_rank_order) {
    return {.loss = 1e-6, .gradient = 0, .weight = 0, .reason = "the parts are added in the same order"};
  }
  Bounds bounds{.loss = 1e-6,
                .gradient = 1e-5,
                .weight = 1e-4,
                .reason = text(parts, " parts are added in another order: rounding of f32")};
  if (adaptive) {
    bounds.weight = 0.05;
    bounds.reason += text("; ", config.optimizer.name, " divides gradients by their own size");
  }
  return bounds;
}

Comparison verify(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                  std::int64_t steps, const ModelFactory& make_own) {
  require(context.world_size() >= 2 || config.train.accumulation >= 2,
          "there is nothing to verify: one rank and train.accumulation = 1 is the serial run; start it with "
          "-n 2");
  Recorder parallel(config, context, data, make_own);
  std::shared_ptr<comm::Context> alone;
  std::unique_ptr<Recorder> serial;
  if (context.is_main()) {
    const RunConfig of_one = serial_config(config, context.world_size());
    alone = comm::Context::join({}, of_one.comm);
    serial = std::make_unique<Recorder>(of_one, *alone, data, make_own);
  }
  Comparison comparison(bounds_of(config, context.world_size(), context.world().backend_name()));
  steps = std::min(steps, parallel.trainer().total_steps());
  for (std::int64_t step = 1; step <= steps; ++step) {
    context.status().set_action(text("step ", step, ": verifying"));
    optim::NamedTensors before;
    if (serial) {
      serial->take_over(parallel);
      before = copies(parallel.trainer().parameters());
    }
    const Done& found = parallel.step();
    compare_replicas(comparison, step, context.world(), parallel.trainer());
    if (!serial) continue;
    const Done& expected = serial->step();
    comparison.loss(step, found.loss, expected.loss);
    comparison.gradients(step, found.gradients, expected.gradients);
    comparison.weights(step, before, found.weights, expected.weights);
  }
  return comparison;
}

}  // namespace trireme::train
