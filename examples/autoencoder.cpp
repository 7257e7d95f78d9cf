// A custom task with the whole command line: images are their own targets. A custom model learns them through
// a narrow layer.
//
//   example_autoencoder train autoencoder.toml -n 2 --set autoencoder.code=16 --timeline timeline.html
//   example_autoencoder verify autoencoder.toml -n 2 --set parallel.pipeline=2
//
// The loss is the same, to rounding, for any number of ranks and stages.
#include <torch/nn/modules/linear.h>

#include "trireme/app/run_app.h"

using namespace trireme;

/// The images of a data set, each as its own target.
struct ToItself : data::Dataset {
  explicit ToItself(std::shared_ptr<const Dataset> of) : images(std::move(of)) {}
  std::int64_t size() const override { return images->size(); }
  data::Example get(std::int64_t index) const override {
    const at::Tensor image = images->get(index).input;
    return {image, image};
  }
  std::shared_ptr<const Dataset> images;
};

struct Autoencoder : model::Model {
  explicit Autoencoder(const std::vector<std::int64_t>& widths) {
    for (std::size_t i = 1; i < widths.size(); ++i) {
      const torch::nn::Linear linear(widths[i - 1], widths[i]);
      linears.push_back(register_module(text("linear", i), linear));
    }
  }
  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor values = images;
    for (std::size_t i = 0; i < linears.size(); ++i) values = step(i, values);
    return values;
  }
  std::vector<model::Layer> layers() override {  // what a pipeline may cut
    std::vector<model::Layer> all;
    for (std::size_t i = 0; i < linears.size(); ++i)
      all.push_back(model::make_layer(*this, text(i), {linears[i].ptr()},
                                      [this, i](const at::Tensor& input) { return step(i, input); }));
    return all;
  }
  at::Tensor step(std::size_t i, const at::Tensor& input) {
    const at::Tensor output = linears[i]->forward(input.flatten(1));
    return i + 1 < linears.size() ? output.relu() : output;
  }
  std::vector<torch::nn::Linear> linears;
};

struct Layers {  // the table [autoencoder]
  std::int64_t hidden = 128, code = 32;
};
struct Images {  // the table [images]
  std::string of = "fashion_mnist";
};

std::shared_ptr<Autoencoder> make_model(const Layers& layers, const train::ModelTask& task) {
  const std::int64_t pixels = task.data.train->trial_batch(1).input->numel();
  return std::make_shared<Autoencoder>(
      std::vector<std::int64_t>{pixels, layers.hidden, layers.code, layers.hidden, pixels});
}

data::DataSource open_images(const Images& images, const train::DataTask& task) {
  data::DataSource source = data::open_data({.name = images.of, .path = task.config.data.path});
  source.train = std::make_shared<ToItself>(data::indexed(source.train));
  source.test = std::make_shared<ToItself>(source.test);
  return source;
}

int main(int argc, char** argv) {
  const train::Keys<Layers> layers = {
      {"hidden", &Layers::hidden, "width of the layers between", {.least = 1}},
      {"code", &Layers::code, "numbers that an image becomes", {.least = 1}}};
  const train::Keys<Images> images = {{"of", &Images::of, "whose images", {.names = data::data_names}}};
  return run_app(
      argc, argv,
      {.models = {{"autoencoder", layers, make_model}}, .datasets = {{"images", images, open_images}}});
}
