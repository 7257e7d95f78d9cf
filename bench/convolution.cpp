// Which kernel is faster for a convolution on one thread: ATen's choice or oneDNN? One line of JSON per shape
// and batch: of the last round forward and backward (both gradients) in microseconds of processor time, and
// of the ratio ATen / oneDNN of both together the least, the median and the largest of several rounds. The
// shapes are the 1x1 convolutions of ResNet-50 at 64x64 and at 224x224.
//
//   bench_convolution [--smoke] [--batches 1,4,8] [--sides 2,4]

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/host.h"
#include "trireme/model/internal/convolution_timing.h"

namespace {

using trireme::model::ConvolutionTimer;
using trireme::model::ConvolutionTimes;
using trireme::model::TimedShape;

const std::vector<TimedShape> kShapes = {
    {64, 64, 16},   {64, 256, 16},  {256, 64, 16},   {256, 128, 16},  {128, 512, 8},
    {512, 128, 8},  {512, 256, 8},  {256, 1024, 4},  {1024, 256, 4},  {1024, 512, 4},
    {256, 1024, 2}, {1024, 256, 2}, {512, 2048, 2},  {2048, 512, 2},  {64, 256, 56},
    {256, 64, 56},  {128, 512, 28}, {512, 128, 28},  {256, 1024, 7},  {1024, 256, 7},
    {512, 2048, 7}, {2048, 512, 7}, {256, 1024, 14}, {1024, 256, 14}, {512, 512, 1},
};

nlohmann::ordered_json measure(const TimedShape& shape, int rounds, int turns) {
  const ConvolutionTimer timer(shape);
  std::vector<double> speedups;
  ConvolutionTimes times;
  for (int round = 0; round < rounds; ++round) {
    times = timer.time(turns);
    speedups.push_back(times.speedup());
  }
  std::sort(speedups.begin(), speedups.end());
  return {{"in", shape.in},
          {"out", shape.out},
          {"side", shape.side},
          {"batch", shape.batch},
          {"aten_forward_us", times.aten_forward_us},
          {"onednn_forward_us", times.onednn_forward_us},
          {"aten_backward_us", times.aten_backward_us},
          {"onednn_backward_us", times.onednn_backward_us},
          {"speedup", speedups[speedups.size() / 2]},
          {"least", speedups.front()},
          {"most", speedups.back()}};
}

}  // namespace

int main(int argc, char** argv) {
  bool smoke = false;
  std::vector<std::int64_t> batches{1, 2, 4, 8, 15}, sides;
  CLI::App app("which kernel is faster for a 1x1 convolution on one thread");
  app.add_flag("--smoke", smoke, "a fraction of a second: does it run at all");
  app.add_option("--batches", batches, "samples")->delimiter(',');
  app.add_option("--sides", sides, "only planes of these sides")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  if (smoke) batches = {2}, sides = {2, 4};
  at::set_num_threads(1);
  trireme::keep_freed_memory();  // as in a rank
  for (TimedShape shape : kShapes) {
    if (!sides.empty() && std::find(sides.begin(), sides.end(), shape.side) == sides.end()) continue;
    for (const std::int64_t batch : batches) {
      shape.batch = batch;
      std::cout << measure(shape, smoke ? 1 : 5, smoke ? 1 : 5) << "\n" << std::flush;
    }
  }
  return 0;
}
