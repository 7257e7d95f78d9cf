// The memory format of images is kept between stages: channels-last if a stage produces it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "tests/unit/parallel/small_models.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

using test::mean_square;

bool is_by_pixel(const at::Tensor& images) {
  return images.is_contiguous(at::MemoryFormat::ChannelsLast) && !images.is_contiguous();
}

/// Flags of the stages of all ranks, each in its own field.
struct Seen {
  bool activation = false, gradient = false, evaluated = false;
};

/// Two convolutions. The output of the first is channels-last or contiguous.
struct TwoStages : torch::nn::Module {
  TwoStages(Seen& seen_by_all, bool by_pixel) : seen(seen_by_all), makes_pixels(by_pixel) {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 3)));
    test::fill_parameters(*this);
  }

  std::vector<model::Layer> layers() {
    return {
        model::make_layer(*this, "first", {first.ptr()},
                          [this](const at::Tensor& images) {
                            const at::Tensor made = first->forward(images).contiguous(
                                makes_pixels ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
                            if (made.requires_grad())
                              made.register_hook([this](const at::Tensor& gradient) {
                                seen.gradient = is_by_pixel(gradient);
                              });
                            return made;
                          }),
        model::make_layer(*this, "second", {second.ptr()}, [this](const at::Tensor& images) {
          (at::GradMode::is_enabled() ? seen.activation : seen.evaluated) = is_by_pixel(images);
          return second->forward(images).mean({2, 3});
        })};
  }

  Seen& seen;
  const bool makes_pixels;
  torch::nn::Conv2d first{nullptr}, second{nullptr};
};

at::Tensor images() { return torch::arange(4 * 3 * 9 * 9, torch::kFloat).sin().view({4, 3, 9, 9}); }
at::Tensor targets() { return torch::arange(16, torch::kFloat).cos().view({4, 4}); }
Seen seen_in_a_pipeline(bool by_pixel) {
  Seen seen;
  at::Tensor of_first, evaluated;
  std::mutex mutex;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    TwoStages model(seen, by_pixel);
    Pipeline pipe(context, model.layers(), {.schedule = "1f1b", .num_microbatches = 2});
    pipe.step(images(), targets(), mean_square);
    const at::NoGradGuard no_grad;
    const Fields outputs = pipe.evaluate(images());
    const std::lock_guard lock(mutex);
    if (context.rank() == 0) of_first = model.first->weight.grad().clone();
    if (context.rank() == 1) evaluated = outputs.at(0).clone();
  });
  Seen alone;
  TwoStages model(alone, by_pixel);
  at::Tensor values = images();
  std::vector<model::Layer> layers = model.layers();
  for (const model::Layer& layer : layers) values = layer.forward(Fields(values)).at(0);
  mean_square(values, targets()).backward();
  EXPECT_TRUE(of_first.allclose(model.first->weight.grad(), 1e-5, 1e-7));
  EXPECT_TRUE(evaluated.allclose(values, 1e-5, 1e-7));
  return seen;
}

TEST(PipelineLayout, ChannelsLastImagesStaySoElsewhere) {
  const Seen seen = seen_in_a_pipeline(true);
  EXPECT_TRUE(seen.activation);
  EXPECT_TRUE(seen.gradient);
  EXPECT_TRUE(seen.evaluated);
}

TEST(PipelineLayout, OthersComeChannelByChannel) {
  const Seen seen = seen_in_a_pipeline(false);
  EXPECT_FALSE(seen.activation);
  EXPECT_FALSE(seen.gradient);
  EXPECT_FALSE(seen.evaluated);
}

}  // namespace
}  // namespace trireme::parallel
