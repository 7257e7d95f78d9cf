// Question: how fast is a data-parallel training step? This is one rank of the measurement.
// bench/training_step.sh compares it with Python's DistributedDataParallel with the same model, batch and
// optimizer (bench/peers/training_step.py). One torch thread per rank. Prints one line of JSON on rank 0:
// samples per second over all ranks.
//
//   bench_training_step [--smoke] [--model mlp|cnn|wide|resnet50|gpt|gpt124|resnet50_224]
//   [--precision fp32|bf16|fp16] [--steps N] [--device auto|cpu|cuda] [--backend auto|shm|gloo]
//   [--optimizer sgd|adamw] [--convolution auto|aten|onednn|product]
//   [--memory-format auto|contiguous|channels_last] [--zero 1|2|3] [--plain] [--check-replicas N]
//
// With --zero optimizer state, gradients and parameters are sharded (docs/zero.md), the model as one unit.
// --plain: a plain libtorch loop without data parallelism. --check-replicas: in every Nth step replicas
// compare their parameters; 0, the default: never. gpt124 has the sizes of GPT-2 small (124 M parameters) and
// 8 sequences of 1024 tokens, resnet50_224 64 images of 224 x 224. On a device, channels_last applies to
// weights and inputs. Its convolution kernels are the device's own. JSON: step_ms is milliseconds per step.

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/seconds_of.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/comm/context.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/model/deferred.h"
#include "trireme/model/model.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/train/config/precision.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/parts/convolutions.h"

namespace {

using namespace trireme;
using bench::seconds_of;

struct Workload {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<model::Model> model;  ///< the module, if it is a built-in model
  std::function<at::Tensor(const at::Tensor&)> forward;
  at::Tensor input;
  at::Tensor target;
};

Workload shipped_model(const std::string& name, const std::vector<std::int64_t>& image, std::int64_t batch) {
  auto model = model::make_model({.name = name}, image, 10, /*seed=*/1);
  return {model, model, [model](const at::Tensor& x) { return model->forward(x); },
          at::randn({batch, image[0], image[1], image[2]}), at::randint(10, {batch}, at::kLong)};
}

/// The character model of examples/gpt_char.toml.
Workload text_model() {
  auto model = model::make_model({.name = "gpt"}, {64}, 65, /*seed=*/1);
  return {model, model, [model](const at::Tensor& x) { return model->forward(x); },
          at::randint(65, {12, 64}, at::kLong), at::randint(65, {12 * 64}, at::kLong)};
}

/// The sizes of GPT-2 small (Radford et al., 2019), with the vocabulary padded to a multiple of 64.
Workload gpt2_small() {
  constexpr std::int64_t kBatch = 8, kTokens = 1024, kVocabulary = 50304;
  auto model =
      model::make_model({.name = "gpt", .layers = 12, .heads = 12, .width = 768}, {kTokens}, kVocabulary,
                        /*seed=*/1);
  return {model, model, [model](const at::Tensor& x) { return model->forward(x); },
          at::randint(kVocabulary, {kBatch, kTokens}, at::kLong),
          at::randint(kVocabulary, {kBatch * kTokens}, at::kLong)};
}

/// 16.8 million parameters and little computation: communication dominates.
Workload wide_model() {
  constexpr std::int64_t kWidth = 2048;
  torch::nn::Sequential layers;
  for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
  return {layers.ptr(), nullptr, [layers](const at::Tensor& x) mutable { return layers->forward(x); },
          at::randn({8, kWidth}), at::randint(kWidth, {8}, at::kLong)};
}

Workload workload_of(const std::string& name) {
  if (name == "gpt124") return gpt2_small();
  if (name == "resnet50_224") return shipped_model("resnet50", {3, 224, 224}, 64);
  if (name == "resnet50") return shipped_model(name, {3, 64, 64}, 8);
  if (name == "gpt") return text_model();
  if (name == "wide") return wide_model();
  return shipped_model(name, {1, 28, 28}, 64);
}

/// Moves model and data to the device, in channels_last if requested. A CPU keeps the memory format.
void move_to(Workload& work, c10::Device device, bool channels_last) {
  model::move_to(model::make_layer(*work.module, "whole", {work.module}, work.forward), device);
  work.input = work.input.to(device);
  work.target = work.target.to(device);
  if (device.is_cpu() || !channels_last) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : work.module->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  work.input = work.input.contiguous(at::MemoryFormat::ChannelsLast);
}

void wait_for(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

std::shared_ptr<optim::Optimizer> make_optimizer(const std::string& name,
                                                 const optim::NamedTensors& parameters) {
  optim::OptimizerOptions options{.name = name, .lr = 1e-4};
  if (name == "sgd") options.momentum = 0.9;
  return optim::make_optimizer(options, parameters);
}

optim::NamedTensors parameters_of(const torch::nn::Module& module) {
  optim::NamedTensors parameters;
  for (const auto& item : module.named_parameters()) parameters.emplace_back(item.key(), item.value());
  return parameters;
}

/// The function of a step: forward, backward, reduction, update.
struct Loop {
  std::function<void()> step;
  std::function<double()> waited_s;
  std::function<std::int64_t()> sent_bytes = [] { return 0; };  ///< compressed
};

using Forward = std::function<at::Tensor(const at::Tensor&)>;

Loop plain(const Workload& work, const Forward& forward, const std::string& optimizer_name) {
  const auto optimizer = make_optimizer(optimizer_name, parameters_of(*work.module));
  Loop loop;
  loop.step = [=] {
    work.module->zero_grad();
    at::cross_entropy_loss(forward(work.input), work.target).backward();
    optimizer->step();
  };
  loop.waited_s = [] { return 0.0; };
  return loop;
}

Loop replicas(comm::Context& context, const Workload& work, const Forward& forward,
              const parallel::CompressionOptions& compression, std::int64_t check_replicas_every,
              const std::string& optimizer_name) {
  const std::shared_ptr<parallel::CommHook> hook = parallel::make_comm_hook(compression);
  const auto ddp = std::make_shared<DistributedDataParallel>(
      context, work.module,
      parallel::DataParallelOptions{.hook = hook, .check_replicas_every = check_replicas_every});
  const auto optimizer = make_optimizer(optimizer_name, parameters_of(*work.module));
  Loop loop;
  loop.step = [=] {
    ddp->zero_grad();
    at::cross_entropy_loss(forward(work.input), work.target).backward();
    optimizer->step();
  };
  loop.waited_s = [=] { return ddp->statistics().waited_s; };
  loop.sent_bytes = [=] { return hook->sent_bytes(); };
  return loop;
}

Loop shards(comm::Context& context, const Workload& work, int zero, const Forward& forward,
            const std::string& optimizer_name) {
  const model::Layer whole = model::make_layer(*work.module, "whole", {work.module}, forward);
  const auto pipe = std::make_shared<parallel::Pipeline>(
      context, parallel::PipelineGroups{.pipeline = context.self(), .data = context.world()},
      std::vector{whole},
      parallel::PipelineOptions{.program = schedule::data_parallel(1),
                                .zero = {.stage = static_cast<parallel::ZeroStage>(zero)}});
  const auto optimizer = make_optimizer(optimizer_name, pipe->parameters());
  const auto loss = [](const at::Tensor& logits, const at::Tensor& target) {
    return at::cross_entropy_loss(logits, target.flatten());
  };
  const at::Tensor target = work.target.reshape({work.input.size(0), -1});
  Loop loop;
  loop.step = [=] {
    pipe->zero_grad();
    pipe->step(work.input, target, loss);
    optimizer->step();
  };
  loop.waited_s = [=] { return pipe->waited_s(); };
  return loop;
}

/// Logits, one row per target.
at::Tensor logits_of(const Workload& work, const at::Tensor& input, const train::Precision& precision) {
  const train::PrecisionScope scope(precision, input.device().type());
  return work.forward(input).to(at::kFloat).flatten(0, -2);
}

/// Bytes that this host has sent, including all headers but without loopback. 0 if the kernel does not count.
std::int64_t wire_bytes() {
  std::int64_t bytes = 0;
  std::error_code no_counters;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net", no_counters)) {
    if (entry.path().filename() == "lo") continue;
    std::ifstream file(entry.path() / "statistics/tx_bytes");
    if (std::int64_t sent = 0; file >> sent) bytes += sent;
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("A data-parallel training step.");
  std::string model = "mlp";
  std::string precision = "fp32";
  std::string backend = "auto", convolution = "auto", memory_format = "auto", device = "auto",
              optimizer = "sgd";
  int steps = 50, zero = 0;
  std::int64_t check_replicas_every = 0;
  bool smoke = false, without_ranks = false;
  app.add_option("--model", model)
      ->check(CLI::IsMember({"mlp", "cnn", "wide", "resnet50", "gpt", "gpt124", "resnet50_224"}));
  app.add_option("--device", device);
  app.add_option("--optimizer", optimizer)->check(CLI::IsMember({"sgd", "adamw"}));

  app.add_option("--precision", precision)->check(CLI::IsMember(train::precision_names()));
  app.add_option("--backend", backend);
  app.add_option("--convolution", convolution)->check(CLI::IsMember(train::convolution_names()));
  app.add_option("--memory-format", memory_format)->check(CLI::IsMember(train::memory_format_names()));
  app.add_option("--steps", steps)->check(CLI::PositiveNumber);
  app.add_flag("--plain", without_ranks)->excludes(app.add_option("--zero", zero)->check(CLI::Range(0, 3)));
  app.add_option("--check-replicas", check_replicas_every)->check(CLI::NonNegativeNumber);
  parallel::CompressionOptions compression;
  app.add_option("--compression", compression.name)->check(CLI::IsMember(parallel::comm_hook_names()));
  app.add_option("--fraction", compression.fraction);
  app.add_option("--rank", compression.rank);
  app.add_option("--scope", compression.scope)->check(CLI::IsMember(parallel::compression_scope_names()));
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);
  if (smoke) steps = 2;

  const auto context =
      comm::Context::from_environment({.backend = backend, .device = device, .torch_threads = 1});
  const c10::Device place = context->device();
  Workload work = workload_of(model);
  move_to(work, place, memory_format == "channels_last");
  const auto convolutions_of_a_run = [&] {
    return train::convolutions_for(train::convolution_rule(convolution, memory_format),
                                   train::precision_of(precision), *context, *work.model,
                                   work.input.narrow(0, 0, 1), work.input.size(0));
  };
  const model::ConvolutionScope convolutions(work.model && place.is_cpu() ? convolutions_of_a_run()
                                                                          : model::ConvolutionChoice{});
  const train::Precision& format = train::precision_of(precision);
  const Forward forward = [&](const at::Tensor& input) { return logits_of(work, input, format); };
  const std::uint64_t peak_before = peak_rss_bytes();
  const Loop loop = without_ranks ? plain(work, forward, optimizer)
                    : zero == 0
                        ? replicas(*context, work, forward, compression, check_replicas_every, optimizer)
                        : shards(*context, work, zero, forward, optimizer);
  const auto seconds_for = [&](int count) {
    return seconds_of(*context, 1, [&] {
      for (int i = 0; i < count; ++i) loop.step();
      wait_for(place);
    });
  };
  seconds_for(std::min(steps, 5));  // warm-up: buckets are rebuilt, memory is allocated
  const double waited_before_s = loop.waited_s();
  const std::int64_t sent_before = loop.sent_bytes(), on_wire_before = wire_bytes();
  const double seconds = seconds_for(steps);
  if (!context->is_main()) return 0;
  const double samples = static_cast<double>(work.input.size(0)) * steps * context->world_size();
  std::cout << nlohmann::json{{"system", without_ranks ? "trireme plain" : "trireme"},
                              {"device", place.str()},
                              {"optimizer", optimizer},
                              {"model", precision == "fp32" ? model : model + " " + precision},
                              {"convolution", convolution},
                              {"ranks", context->world_size()},
                              {"backend", context->world().backend_name()},
                              {"zero", zero},
                              {"compression", compression.name},
                              {"scope", compression.scope},
                              {"wire_mb", 1e-6 * static_cast<double>(wire_bytes() - on_wire_before) / steps},
                              {"sent_bytes", (loop.sent_bytes() - sent_before) / steps},
                              {"steps", steps},
                              {"step_ms", 1e3 * seconds / steps},
                              {"grown_mib", (peak_rss_bytes() - peak_before) >> 20},
                              {"waited_ms", 1e3 * (loop.waited_s() - waited_before_s) / steps},
                              {"samples_per_s", samples / seconds}}
                   .dump()
            << std::endl;
  return 0;
} catch (const trireme::Error& error) {
  std::cerr << error.what() << std::endl;
  return error.exit_code();
}
