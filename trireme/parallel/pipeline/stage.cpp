#include "trireme/parallel/pipeline/internal/stage.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/untouched.h"
#include "trireme/parallel/internal/layer_inputs.h"

namespace trireme::parallel {
namespace {

at::Tensor detached(const at::Tensor& tensor) { return tensor.detach(); }

/// Shares memory but not the version counter: micro-batches are views of one batch, and a write to one must
/// not invalidate others.
at::Tensor apart(const at::Tensor& microbatch) { return microbatch.variable_data(); }

}  // namespace

Stage::Stage(std::vector<model::Layer> layers, const StageOptions& options,
             std::vector<model::SkipNames> carried)
    : layers_(std::move(layers)), carried_(std::move(carried)), options_(options) {
  carried_.resize(layers_.size() + 1);
}

Fields Stage::run_layer(std::size_t number, const Fields& values) const {
  return as_error_of(
      [&] { return text("layer '", layers_[number].name, "'"); },
      [&] { return model::run_layer(layers_[number], values, carried_[number], carried_[number + 1]); });
}

Fields Stage::run_layers(Fields values) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) values = run_layer(i, values);
  return values;
}

Fields Stage::run(Live& live, int microbatch) const {
  Fields values = live.inputs;
  const auto note_begin = [&] {
    if (!live.begins.empty()) return;
    for (const auto& [name, value] : values) {
      if (value.requires_grad()) live.begins.push_back(torch::autograd::impl::gradient_edge(value));
    }
  };
  note_begin();
  values = values.map(entered);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    values = run_layer(i, values);
    note_begin();
  }
  if (!head_) return values;
  return as_error_of([&] { return text("the loss of micro-batch ", microbatch); },
                     [&] { return head_(values, microbatch); });
}

std::string Stage::backward_place(int microbatch) const {
  return text("the backward of layers '", layers_.front().name, "' to '", layers_.back().name,
              "' for micro-batch ", microbatch);
}

Fields Stage::leaves_of(const Fields& inputs, const std::vector<std::size_t>& without_gradient) const {
  Fields leaves = inputs.map(options_.wants_input_gradient ? detached : apart);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool left_out =
        std::find(without_gradient.begin(), without_gradient.end(), i) != without_gradient.end();
    if (options_.wants_input_gradient && inputs.at(i).is_floating_point() && !left_out)
      leaves.at(i).requires_grad_(true);
  }
  return leaves;
}

Fields Stage::forward(int microbatch, const Fields& inputs,
                      const std::vector<std::size_t>& without_gradient) {
  Live live;
  live.inputs = leaves_of(inputs, without_gradient);
  Fields outputs;
  if (options_.recompute) {
    const model::ForwardRecord::Recording recording(live.record);
    const at::NoGradGuard no_grad;
    const std::vector<std::int64_t> before = versions_of(live.inputs);
    outputs = run(live, microbatch);
    require(versions_of(live.inputs) == before, "a layer from '", layers_.front().name, "' to '",
            layers_.back().name,
            "' changes the input of their stage in place (such as a ReLU with "
            "inplace(true)), and with recompute the stage runs again from that input: let the layer return a "
            "new tensor, cut the model elsewhere, or train without recompute");
  } else {
    outputs = live.outputs = run(live, microbatch);
  }
  const bool fresh = live_.emplace(microbatch, std::move(live)).second;
  if (!fresh) throw InternalError(text("micro-batch ", microbatch, " goes forward a second time"));
  return outputs.map(detached);
}

void Stage::recompute(int microbatch) {
  Live& live = live_.at(microbatch);
  if (!live.outputs.empty()) return;
  // Running statistics include the micro-batch already; dropout draws the same mask again.
  const model::ForwardRecord::Replaying again(live.record, model::buffers_of(layers_));
  live.outputs = run(live, microbatch);
}

void Stage::check_gradients(const Fields& outputs, const model::Tensors& gradients) const {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    require(!outputs.at(i).requires_grad() || gradients[i].defined(), "output ", i, " of layers '",
            layers_.front().name, "' to '", layers_.back().name,
            "' needs a gradient, and needed none when the pipeline asked for the shapes: make the pipeline "
            "again after parameters begin to learn");
  }
}

model::Tensors Stage::backward(int microbatch, const model::Tensors& output_gradients) {
  recompute(microbatch);
  const Live live = std::move(live_.extract(microbatch).mapped());
  check_gradients(live.outputs, output_gradients);
  model::Tensors roots, arriving, gradients(live.inputs.size());
  for (std::size_t i = 0; i < live.outputs.size(); ++i) {
    if (!live.outputs.at(i).requires_grad()) continue;
    roots.push_back(live.outputs.at(i));
    arriving.push_back(output_gradients[i]);
  }
  if (roots.empty()) return gradients;  // fixed parameters and integer inputs: nothing to learn
  as_error_of([&] { return backward_place(microbatch); },
              [&] { torch::autograd::backward(roots, arriving); });
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = live.inputs.at(i).grad();
  return gradients;
}

model::Tensors Stage::backward_input(int microbatch, const model::Tensors& output_gradients) {
  recompute(microbatch);
  Live& live = live_.at(microbatch);
  check_gradients(live.outputs, output_gradients);
  const Fields inputs = live.inputs;
  InputBackward first =
      as_error_of([&] { return backward_place(microbatch); },
                  [&] { return backward_of_inputs(live.outputs, output_gradients, live.begins); });
  live = {};
  live.weights = std::move(first.weights);
  unsplit_.insert(live.weights.unsplit().begin(), live.weights.unsplit().end());
  model::Tensors gradients(inputs.size());
  auto given = first.gradients.begin();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs.at(i).requires_grad()) continue;
    const at::Tensor& gradient = *given++;
    if (!gradient.defined()) continue;
    // With the memory layout of a leaf's gradient.
    gradients[i] = torch::autograd::utils::obeys_layout_contract(gradient, inputs.at(i))
                       ? gradient
                       : torch::autograd::utils::clone_obey_contract(gradient, inputs.at(i));
  }
  return gradients;
}

void Stage::backward_weight(int microbatch) { live_.extract(microbatch).mapped().weights.run(); }

Fields Stage::evaluate(const Fields& inputs) const {
  const model::EvaluationMode mode(layers_);
  const at::NoGradGuard no_grad;
  return run_layers(inputs);
}

std::vector<std::size_t> Stage::outputs_without_gradient(
    const Fields& inputs, const std::vector<std::size_t>& without_gradient) const {
  const model::EvaluationMode mode(layers_);
  const at::AutoGradMode with_graph(true);
  const Fields outputs = run_layers(leaves_of(inputs, without_gradient).map(entered));
  std::vector<std::size_t> without;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs.at(i).requires_grad()) without.push_back(i);
  }
  return without;
}

bool Stage::learns(int microbatch) const {
  const auto wants = [](const auto& named) { return named.second.requires_grad(); };
  for (const auto& [name, input] : live_.at(microbatch).inputs) {
    if (input.requires_grad()) return true;
  }
  return std::any_of(layers_.begin(), layers_.end(), [&](const model::Layer& layer) {
    return std::any_of(layer.parameters.begin(), layer.parameters.end(), wants);
  });
}

}  // namespace trireme::parallel
