#pragma once
// Measurements of bench_pipeline_resnet50: a step of ResNet-50 in one process, in two sequential stages, and
// in a pipeline of two stages with micro-batches of several sizes.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/schedule/timed_action.h"

namespace trireme::bench {

struct SweepOptions {
  std::int64_t batch = 120;
  std::int64_t image_size = 64;  ///< images are 3 x size x size
  std::vector<int> splits = {1, 3, 5, 8, 10, 12, 20, 40, 60};
  int repeats = 5;
  std::string schedule = "1f1b";
  std::string convolution = "auto";  ///< a name of train::convolution_names()
};

struct Spread {
  double median = 0, low = 0, high = 0;  ///< low and high: the smallest and the largest
};

/// At least one value.
Spread spread_of(std::vector<double> values);

/// One way to do the step. Of "single" only `seconds` counts.
struct Way {
  std::string name;        ///< "single", "naive", "pipelined"
  std::int64_t split = 0;  ///< images of a micro-batch
  int num_microbatches = 1;
  std::vector<double> seconds;        ///< of each pass: forward, backward and update
  std::vector<double> ideal_s = {};   ///< of the same steps: their program with their own mean stage times
  schedule::Costs costs = {};         ///< mean seconds of a micro-batch, by stage, over all passes
  std::vector<double> update_s = {};  ///< per rank: clearing gradients and the optimizer, mean
  schedule::Program program = {};
  std::vector<schedule::TimedRanks> steps = {};  ///< of each pass
};

/// Collective, two ranks. Passes over all ways, one step of each, after one pass that does not count.
/// Complete on every rank but for `seconds`, which count on rank 0.
std::vector<Way> run_sweep(comm::Context& context, const SweepOptions& options);

}  // namespace trireme::bench
