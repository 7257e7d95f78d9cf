// A task of one's own: images are their own targets, and a model of one's own learns them through 32 numbers.
//
//   trireme launch -n 2 -- example_autoencoder train autoencoder.toml [KEY=VALUE...]
//   trireme launch -n 2 -- example_autoencoder verify autoencoder.toml parallel.pipeline=2
//
// The loss is the same, to rounding, for any number of ranks and stages.
#include <torch/nn/modules/linear.h>

#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/train/run.h"
#include "trireme/train/verify.h"

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
  Autoencoder(std::int64_t pixels, std::int64_t seed) {
    const std::vector<std::int64_t> widths = {pixels, 128, 32, 128, pixels};
    for (std::size_t i = 1; i < widths.size(); ++i) {
      const torch::nn::Linear linear(widths[i - 1], widths[i]);
      linears.push_back(register_module(text("linear", i), linear));
    }
    initialise(static_cast<std::uint64_t>(seed));
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

int main(int argc, char** argv) try {
  require(argc > 2, "usage: ", argv[0], " train|verify FILE.toml [KEY=VALUE...]");
  const train::RunConfig config = train::load_run_config(argv[2], {argv + 3, argv + argc});
  const auto context = comm::Context::from_environment(config.comm);
  data::DataSource data = data::open_data(config.data);
  data.train = std::make_shared<ToItself>(data.train);
  data.test = std::make_shared<ToItself>(data.test);
  const std::int64_t pixels = data.train->get(0).input.numel();
  const auto make = [&] { return std::make_shared<Autoencoder>(pixels, config.run.seed); };
  if (std::string_view(argv[1]) == "train")
    return train::run_training(config, *context, {.model = make(), .data = data}).exit_code;
  const train::Comparison found = train::verify(config, *context, data, 3, {.make_model = make});
  if (!context->is_main()) return 0;
  std::puts(found.equal() ? "verified" : found.first() ? found.first()->describe().c_str() : "not compared");
  return found.equal() ? 0 : kExitDiverged;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_code();
}
