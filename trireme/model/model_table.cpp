#include <array>

#include "trireme/base/error.h"
#include "trireme/model/cnn.h"
#include "trireme/model/gpt.h"
#include "trireme/model/initialise.h"
#include "trireme/model/mlp.h"
#include "trireme/model/model.h"
#include "trireme/model/resnet.h"

namespace trireme::model {
namespace {

using Shape = std::vector<std::int64_t>;

std::string text_of(const Shape& shape) {
  std::vector<std::string> dims;
  for (const std::int64_t dim : shape) dims.push_back(std::to_string(dim));
  return text("(", join(dims), ")");
}

std::shared_ptr<Model> make_mlp(const ModelOptions& options, const Shape& input_shape,
                                std::int64_t num_classes) {
  std::int64_t num_inputs = 1;
  for (const std::int64_t dim : input_shape) num_inputs *= dim;
  return std::make_shared<Mlp>(num_inputs, options.hidden, num_classes);
}

std::shared_ptr<Model> make_cnn(const ModelOptions&, const Shape& input_shape, std::int64_t num_classes) {
  require(input_shape.size() == 3 && input_shape[1] >= 4 && input_shape[2] >= 4,
          "the cnn takes images (channels, height, width) of at least 4 by 4 pixels, not samples of shape ",
          text_of(input_shape));
  return std::make_shared<Cnn>(input_shape[0], input_shape[1], input_shape[2], num_classes);
}

std::shared_ptr<Model> make_resnet(const ResNetOptions& kind, const Shape& input_shape,
                                   std::int64_t num_classes) {
  require(input_shape.size() == 3, "a resnet takes images (channels, height, width), not samples of shape ",
          text_of(input_shape));
  ResNetOptions options = kind;
  options.channels = input_shape[0];
  options.num_classes = num_classes;
  return std::make_shared<ResNet>(options);
}

std::shared_ptr<Model> make_resnet18(const ModelOptions&, const Shape& input_shape,
                                     std::int64_t num_classes) {
  return make_resnet({}, input_shape, num_classes);
}

std::shared_ptr<Model> make_resnet50(const ModelOptions&, const Shape& input_shape,
                                     std::int64_t num_classes) {
  return make_resnet({.blocks = {3, 4, 6, 3}, .bottleneck = true}, input_shape, num_classes);
}

std::shared_ptr<Model> make_gpt(const ModelOptions& options, const Shape& input_shape,
                                std::int64_t num_classes) {
  require(input_shape.size() == 1, "the gpt takes sequences of tokens, not samples of shape ",
          text_of(input_shape), ": set data.name to a text");
  return std::make_shared<Gpt>(GptOptions{.layers = options.layers,
                                          .heads = options.heads,
                                          .width = options.width,
                                          .block = input_shape[0],
                                          .vocabulary = num_classes});
}

struct ModelRow {
  std::string_view name;
  std::shared_ptr<Model> (*make)(const ModelOptions&, const Shape&, std::int64_t num_classes);
};

constexpr std::array<ModelRow, 5> kModelTable = {{
    {"mlp", make_mlp},
    {"cnn", make_cnn},
    {"resnet18", make_resnet18},
    {"resnet50", make_resnet50},
    {"gpt", make_gpt},
}};

}  // namespace

Layer whole(Model& model) {
  Layer layer{.name = model.name(),
              .forward = [&model](const Fields& inputs) { return model.forward_all(inputs); }};
  layer.modules = {model.shared_from_this()};
  for (const auto& item : model.named_parameters()) layer.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) layer.buffers.emplace_back(item.key(), item.value());
  return layer;
}

std::vector<Layer> layers_or_whole(Model& model) {
  std::vector<Layer> layers = model.layers();
  if (layers.empty()) layers.push_back(whole(model));
  return layers;
}

void Model::initialise(std::uint64_t seed) {
  if (FirstValuesOf::is_open()) model::initialise(*this, seed);
}

at::Tensor Model::forward(const at::Tensor& /*input*/) {
  throw InvalidArgument(text("the model of type ", name(),
                             " has no forward of one tensor: call its forward_all, or override "
                             "Model::forward"));
}

at::Tensor Model::loss(const at::Tensor& /*output*/, const at::Tensor& /*target*/) {
  throw InvalidArgument(text("the model of type ", name(),
                             " has no loss of its own, which objective.name = \"model\" asks for; override "
                             "Model::loss, or choose another objective"));
}

std::shared_ptr<Model> make_model(const ModelOptions& options, const std::vector<std::int64_t>& input_shape,
                                  std::int64_t num_classes, std::uint64_t seed) {
  require(num_classes >= 1, "a model needs at least one class, not ", num_classes);
  for (const std::int64_t dim : input_shape) {
    require(dim >= 1, "a model cannot take samples of shape ", text_of(input_shape));
  }
  for (const ModelRow& row : kModelTable) {
    if (row.name != options.name) continue;
    std::shared_ptr<Model> model = row.make(options, input_shape, num_classes);
    model->initialise(seed);
    return model;
  }
  throw InvalidArgument(text("unknown model '", options.name, "'", suggest(options.name, model_names())));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelRow& row : kModelTable) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::model
