#include "trireme/model/mlp.h"

#include <ATen/ops/relu.h>

#include "trireme/base/error.h"
#include "trireme/model/initialise.h"

namespace trireme::model {

Mlp::Mlp(std::int64_t num_inputs, const std::vector<std::int64_t>& hidden, std::int64_t num_classes) {
  std::vector<std::int64_t> widths = hidden;
  widths.push_back(num_classes);
  std::int64_t width = num_inputs;
  for (const std::int64_t next : widths) {
    require(next >= 1, "a layer of the mlp needs a positive width, not ", next);
    layers_.push_back(register_module(text("fc", layers_.size() + 1), torch::nn::Linear(width, next)));
    width = next;
  }
}

std::vector<std::int64_t> Mlp::widths() const {
  std::vector<std::int64_t> widths = {layers_.front()->options.in_features()};
  for (const torch::nn::Linear& layer : layers_) widths.push_back(layer->options.out_features());
  return widths;
}

at::Tensor Mlp::forward(const at::Tensor& input) {
  at::Tensor values = input.flatten(1);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    values = layers_[i]->forward(i == 0 ? values : at::relu(values));
  }
  return values;
}

void Mlp::initialise(std::uint64_t seed) { model::initialise(*this, seed); }

std::vector<Layer> Mlp::layers() {
  std::vector<Layer> chain;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    chain.push_back(make_layer(*this, text("fc", i + 1), {layers_[i].ptr()},
                               [layer = layers_[i], first = i == 0](const at::Tensor& input) mutable {
                                 return layer->forward(first ? input.flatten(1) : at::relu(input));
                               }));
  }
  return chain;
}

}  // namespace trireme::model
