// Question: which kernel is faster for a convolution on one thread: ATen's choice, oneDNN, or one matrix
// product over the batch? One line of JSON per shape, batch, layout and kernel: microseconds of processor
// time of the three passes, the minimum of several turns. The sum is compared with that of ATen with
// contiguous activations. The shapes are those of ResNet-50 at the given image size; `count` is the number of
// occurrences.
//
//   bench_convolution [--smoke] [--batches 1,4,8] [--image-size 64]

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <CLI/CLI.hpp>
#include <array>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "trireme/base/host.h"
#include "trireme/model/convolution_measurement.h"
#include "trireme/model/internal/convolution_timing.h"

namespace {

using namespace trireme;

constexpr std::array kKernels{"aten", "onednn", "product"};

std::map<model::ConvolutionShape, int> shapes_of_resnet50(std::int64_t image_size) {
  const std::vector<std::int64_t> image{3, image_size, image_size};
  const auto resnet = model::make_model({.name = "resnet50"}, image, 10, /*seed=*/1);
  std::map<model::ConvolutionShape, int> counts;
  const at::Tensor sample = at::zeros({1, 3, image_size, image_size});
  for (const auto& shape : convolutions_of(*resnet, sample, 1).shapes) ++counts[shape];
  return counts;
}

void print(const model::ConvolutionShape& shape, int count, std::int64_t batch, int turns) {
  constexpr double kNoLimit = 1e12;
  const model::ConvolutionTimes times = model::ConvolutionTimer(shape, batch).time(turns, kNoLimit);
  const double atens_us = times.at({}).sum_us();
  for (const auto& [way, passes] : times) {
    std::cout << nlohmann::ordered_json{{"shape", to_text(shape)},
                                        {"count", count},
                                        {"batch", batch},
                                        {"layout", way.channels_last ? "channels_last" : "contiguous"},
                                        {"kernel", kKernels[static_cast<std::size_t>(way.kernel)]},
                                        {"forward_us", passes.forward_us},
                                        {"of_input_us", passes.of_input_us},
                                        {"of_weight_us", passes.of_weight_us},
                                        {"aten_over_it", atens_us / passes.sum_us()}}
              << "\n"
              << std::flush;
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool smoke = false;
  std::int64_t image_size = 64;
  std::vector<std::int64_t> batches{1, 8, 32};
  CLI::App app("which kernel is faster for a convolution on one thread");
  app.add_flag("--smoke", smoke, "a fraction of a second: does it run at all");
  app.add_option("--batches", batches, "samples")->delimiter(',');
  app.add_option("--image-size", image_size)->check(CLI::Range(32, 1024));
  CLI11_PARSE(app, argc, argv);
  if (smoke) batches = {1}, image_size = 32;
  at::set_num_threads(1);
  keep_freed_memory();  // as in a rank
  for (const auto& [shape, count] : shapes_of_resnet50(image_size)) {
    for (const std::int64_t batch : batches) print(shape, count, batch, smoke ? 1 : 7);
  }
  return 0;
}
