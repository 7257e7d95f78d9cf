#include "trireme/parallel/pipeline/pipe.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/model/checkpointed.h"
#include "trireme/model/deferred.h"
#include "trireme/model/layer_cuts.h"
#include "trireme/optim/tensors_of.h"

namespace trireme::parallel {

struct Pipe::Here {
  std::vector<model::Layer> layers;
  std::vector<c10::Device> device_of;  ///< by layer

  at::Tensor forward(const std::vector<at::Tensor>& chunks) const {
    std::vector<at::Tensor> outputs;
    // A device runs its work in order, and the host does not wait. So devices compute different micro-batches
    // at the same time.
    for (const at::Tensor& chunk : chunks) {
      Fields value = chunk;
      for (std::size_t i = 0; i < layers.size(); ++i) value = layers[i].forward(value.on(device_of[i]));
      outputs.push_back(value.at(0));
    }
    return at::cat(outputs);
  }
};

namespace {

/// Returns the device of each layer, after its parameters were moved there.
std::vector<c10::Device> place(const std::vector<model::Layer>& layers,
                               const std::vector<c10::Device>& devices) {
  std::vector<int> ends = model::cuts_by_parameters(layers, static_cast<int>(devices.size()));
  ends.push_back(static_cast<int>(layers.size()));
  std::vector<c10::Device> of_layers;
  for (std::size_t stage = 0; stage < devices.size(); ++stage)
    of_layers.resize(static_cast<std::size_t>(ends[stage]), devices[stage]);
  std::map<c10::TensorImpl*, c10::Device> placed;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [name, parameter] : layers[i].parameters) {
      const auto [at, fresh] = placed.emplace(parameter.unsafeGetTensorImpl(), of_layers[i]);
      require(at->second == of_layers[i], "parameter '", name, "' belongs to layers on ", at->second.str(),
              " and ", of_layers[i].str(),
              "; expected one device; put these layers into one child of the "
              "chain");
    }
  }
  for (std::size_t i = 0; i < layers.size(); ++i) model::move_to(layers[i], of_layers[i]);
  return of_layers;
}

/// Sizes, then the number of the dtype: "4,3,6". empty_as() reads it.
std::string to_text(const at::Tensor& tensor) {
  std::string words;
  for (const std::int64_t size : tensor.sizes()) words += text(size, ',');
  return words + std::to_string(static_cast<int>(tensor.scalar_type()));
}

at::Tensor empty_as(const std::string& words, c10::Device device) {
  std::vector<std::int64_t> sizes;
  for (const std::string& word : split(words, ',')) sizes.push_back(std::stoll(word));
  const auto dtype = static_cast<at::ScalarType>(sizes.back());
  sizes.pop_back();
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace

Pipe::Pipe(comm::Context& context, const torch::nn::Sequential& chain, const PipeOptions& options)
    : context_(context), chunks_(options.chunks) {
  require(options.chunks >= 1, "a pipe of ", options.chunks, " chunks; expected at least 1 micro-batch");
  const bool is_alone = context.world_size() == 1;
  require(is_alone || options.devices.empty(), "a pipe over ", context.world_size(), " ranks names ",
          options.devices.size(),
          " devices; expected none: each rank computes on Context::device(); leave "
          "devices out, or start one rank");
  if (options.deferred_batch_norm) convert_deferred_batchnorm(*chain.ptr(), chunks_);
  for (const auto& module : chain.ptr()->modules()) {
    if (auto norm = std::dynamic_pointer_cast<DeferredBatchNormImpl>(module))
      norms_.push_back(std::move(norm));
  }
  const std::vector<model::Layer> layers = model::layers_of(chain);
  if (is_alone) {
    const std::vector<c10::Device> devices =
        options.devices.empty() ? std::vector{context.device()} : options.devices;
    here_ = std::make_unique<Here>();
    here_->device_of = place(layers, devices);
    for (const model::Layer& layer : layers)
      here_->layers.push_back(options.recompute ? model::checkpointed(layer) : layer);
    if (devices.size() > 1) return;
  }
  PipelineOptions over_ranks{.schedule = options.schedule,
                             .num_microbatches = options.chunks,
                             .recompute = options.recompute,
                             .device = is_alone ? here_->device_of.front() : context.device()};
  require(
      !is_asynchronous(over_ranks), "a pipe with schedule = \"", options.schedule,
      "\", whose stages update while micro-batches are under way; expected a synchronous schedule such as "
      "1f1b; take parallel::AsynchronousTraining");
  over_ranks.materialise = [device = over_ranks.device](const std::vector<model::Layer>& stage) {
    for (const model::Layer& layer : stage) model::move_to(layer, device);
  };
  pipeline_ = std::make_unique<Pipeline>(context, layers, over_ranks);
}

Pipe::~Pipe() = default;

Pipeline& Pipe::pipeline() {
  require(pipeline_ != nullptr,
          "a pipe over several devices of one rank has no Pipeline: its chain holds all parameters, for "
          "checkpoint::replicated_loop(*chain, ...) and optim::clip_grad_norm()");
  return *pipeline_;
}

at::Tensor Pipe::forward(const at::Tensor& input) {
  require(input.defined() && input.dim() > 0 && input.size(0) > 0,
          "the input of a pipe has no samples in its first dim; expected (batch, ...)");
  if (!here_) return forward_over_ranks(input);
  const std::vector<at::Tensor> chunks = input.chunk(chunks_);
  begin_batch(std::ssize(chunks));
  return here_->forward(chunks);
}

void Pipe::begin_batch(std::int64_t chunks) {
  for (const auto& norm : norms_) norm->set_chunks(chunks);
}

at::Tensor Pipe::forward_over_ranks(const at::Tensor& input) {
  const Fields outputs = pipeline_->evaluate(input.to(context_.device()));
  at::Tensor output = pipeline_->has_last_stage() ? outputs.at(0).contiguous() : at::Tensor();
  comm::Group& world = context_.world();
  const int last = pipeline_->stages().back().ranks.front();
  const std::string shape =
      world.all_gather_text(output.defined() ? to_text(output) : "")[static_cast<std::size_t>(last)];
  if (!output.defined()) output = empty_as(shape, context_.device());
  world.broadcast(output, last);
  return output;
}

double Pipe::step(const at::Tensor& input, const at::Tensor& target, const Pipeline::Loss& loss) {
  if (pipeline_) {
    begin_batch(chunks_);
    const c10::Device device = here_ ? here_->device_of.front() : context_.device();
    return pipeline_->step(input.to(device), target.to(device), loss);
  }
  const at::Tensor output = forward(input);
  const at::Tensor mean = loss(output, target.to(output.device()));
  mean.backward();
  return mean.item<double>();
}

optim::NamedTensors Pipe::named_parameters() const {
  if (pipeline_) return pipeline_->parameters();
  optim::NamedTensors all;
  std::set<c10::TensorImpl*> seen;
  for (const model::Layer& layer : here_->layers)
    for (const auto& [name, parameter] : layer.parameters)
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) all.emplace_back(name, parameter);
  return all;
}

std::vector<at::Tensor> Pipe::parameters() const {
  return optim::tensors_of(named_parameters());
}

void Pipe::zero_grad() {
  for (const at::Tensor& parameter : parameters()) at::Tensor(parameter).mutable_grad().reset();
}

}  // namespace trireme::parallel
