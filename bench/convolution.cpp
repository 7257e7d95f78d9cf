// Which kernel is faster for a convolution on one thread: ATen's choice or oneDNN? One line of JSON per shape
// and batch: medians of forward and of backward (both gradients), in microseconds, ours and ATen's, measured
// in turns. The shapes are the 1x1 convolutions of ResNet-50 at 64x64 and at 224x224.
//
//   bench_convolution [--smoke]

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <ATen/ops/rand.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/host.h"

namespace {

struct Shape {
  std::int64_t in, out, side;
};

const std::vector<Shape> kShapes = {
    {64, 64, 16},   {64, 256, 16},  {256, 64, 16},  {256, 128, 16}, {128, 512, 8},   {512, 128, 8},
    {512, 256, 8},  {256, 1024, 4}, {1024, 256, 4}, {1024, 512, 4}, {512, 2048, 2},  {2048, 512, 2},
    {64, 256, 56},  {256, 64, 56},  {128, 512, 28}, {512, 128, 28}, {256, 1024, 14}, {1024, 256, 14},
    {512, 2048, 7}, {2048, 512, 7}, {512, 512, 1},
};

double seconds_of(const std::function<void()>& action) {
  const double begin_s = trireme::now_s();
  action();
  return trireme::now_s() - begin_s;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// Medians of several actions, taken in turns.
std::vector<double> compare(const std::vector<std::function<void()>>& actions, int rounds) {
  std::vector<std::vector<double>> times(actions.size());
  for (const auto& action : actions) action();
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < actions.size(); ++i) times[i].push_back(seconds_of(actions[i]));
  }
  std::vector<double> medians;
  for (const auto& each : times) medians.push_back(1e6 * median(each));
  return medians;
}

nlohmann::ordered_json measure(const Shape& shape, std::int64_t batch, int rounds) {
  const at::Tensor input = at::rand({batch, shape.in, shape.side, shape.side});
  const at::Tensor weight = at::rand({shape.out, shape.in, 1, 1});
  const at::Tensor gradient = at::rand({batch, shape.out, shape.side, shape.side});
  const std::vector<std::int64_t> one = {1, 1}, zero = {0, 0};
  const auto medians = compare(
      {[&] {
         at::_convolution(input, weight, {}, one, zero, one, false, zero, 1, false, false, false, false);
       },
       [&] { at::mkldnn_convolution(input, weight, {}, zero, one, one, 1); },
       [&] {
         at::compositeexplicitautograd::convolution_backward(gradient, input, weight, {}, one, zero, one,
                                                             false, zero, 1,
                                                             std::array<bool, 3>{true, true, false});
       },
       [&] {
         at::native::mkldnn_convolution_backward_stub(at::kCPU, input, gradient, weight, zero, one, one, 1,
                                                      std::array<bool, 3>{true, true, false});
       }},
      rounds);
  return {{"in", shape.in},
          {"out", shape.out},
          {"side", shape.side},
          {"batch", batch},
          {"aten_forward_us", medians[0]},
          {"onednn_forward_us", medians[1]},
          {"aten_backward_us", medians[2]},
          {"onednn_backward_us", medians[3]},
          {"speedup", (medians[0] + medians[2]) / (medians[1] + medians[3])}};
}

}  // namespace

int main(int argc, char** argv) {
  bool smoke = false;
  CLI::App app("which kernel is faster for a 1x1 convolution on one thread");
  app.add_flag("--smoke", smoke, "a fraction of a second: does it run at all");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  trireme::keep_freed_memory();  // as in a rank
  const at::NoGradGuard no_grad;
  const std::vector<std::int64_t> batches =
      smoke ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{1, 2, 4, 8, 15};
  for (const Shape& shape : kShapes) {
    if (smoke && shape.side > 4) continue;
    for (const std::int64_t batch : batches)
      std::cout << measure(shape, batch, smoke ? 1 : 15) << "\n" << std::flush;
  }
  return 0;
}
