// Question: what does a pipeline of two stages gain over one process, by the size of its micro-batches? The
// experiment of PyTorch's tutorial "Single-Machine Model Parallel Best Practices": ResNet-50 cut after
// layer2, random images and one-hot labels, mean squared error, SGD. One process computes the whole batch;
// two stages compute it one after the other (naive); two stages compute micro-batches concurrently
// (pipelined). Devices are ranks with one torch thread each. This is one of two ranks; `trireme bench
// pipeline-resnet50` starts them. In each pass every variant takes its turn, so that noise affects all
// equally.
//
// The ideal of a step is the simulation of its program, with the rank's update after it. Each action takes
// its measured mean time (both ranks busy; waiting for messages does not count). Messages take no time.

#include <CLI/CLI.hpp>
#include <iostream>

#include "bench/pipeline_resnet50/report.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/schedule/timeline_page.h"
#include "trireme/train/parts/convolutions.h"

namespace {

using namespace trireme;

struct Arguments {
  bench::SweepOptions sweep;
  std::string report = "report.html", timeline;
  bool json = false, smoke = false;
};

void declare(CLI::App& app, Arguments& arguments) {
  bench::SweepOptions& sweep = arguments.sweep;
  app.add_option("--batch", sweep.batch)->check(CLI::PositiveNumber);
  app.add_option("--image-size", sweep.image_size)->check(CLI::Range(32, 1024));
  app.add_option("--splits", sweep.splits)->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--repeats", sweep.repeats)->check(CLI::PositiveNumber);
  app.add_option("--schedule", sweep.schedule);
  app.add_option("--report", arguments.report);
  app.add_option("--timeline", arguments.timeline);
  app.add_option("--convolution", sweep.convolution)->check(CLI::IsMember(train::convolution_names()));
  app.add_flag("--json", arguments.json);
  app.add_flag("--smoke", arguments.smoke);
}

/// The pipelined way with the lowest median.
const bench::Way& fastest(const std::vector<bench::Way>& ways) {
  const bench::Way* best = nullptr;
  for (const bench::Way& way : ways) {
    if (way.name != "pipelined") continue;
    const bool first = best == nullptr;
    if (first || bench::spread_of(way.seconds).median < bench::spread_of(best->seconds).median) best = &way;
  }
  return best == nullptr ? ways.back() : *best;
}

void write_timeline(const Arguments& arguments, const bench::Way& way) {
  constexpr std::size_t kMaxSteps = 3;
  schedule::TimelinePage page{.title = text("ResNet-50 in two stages, micro-batches of ", way.split),
                              .remark = "The update of the weights follows behind the last action.",
                              .program = way.program,
                              .costs = way.costs,
                              .steps = {}};
  for (std::size_t i = 0; i < std::min(kMaxSteps, way.steps.size()); ++i)
    page.steps.push_back({.name = text("pass ", i + 1), .ranks = way.steps[i]});
  write_file_atomic(arguments.timeline, schedule::timeline_page(page));
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("A pipeline of ResNet-50 in two stages, by the size of its micro-batches.");
  Arguments arguments;
  declare(app, arguments);
  CLI11_PARSE(app, argc, argv);
  if (arguments.smoke)
    arguments.sweep = {
        .batch = 4, .image_size = 32, .splits = {2, 4}, .repeats = 2, .schedule = arguments.sweep.schedule};

  keep_freed_memory();
  const auto context = comm::Context::from_environment({.timeout_s = 600, .torch_threads = 1});
  const std::vector<bench::Way> ways = bench::run_sweep(*context, arguments.sweep);
  if (!context->is_main()) return 0;
  std::cout << (arguments.json ? bench::report_json(arguments.sweep, ways)
                               : bench::report_table(arguments.sweep, ways))
            << std::flush;
  if (!arguments.report.empty())
    write_file_atomic(arguments.report, bench::report_page(arguments.sweep, ways));
  if (!arguments.timeline.empty()) write_timeline(arguments, fastest(ways));
  return 0;
} catch (const trireme::Error& error) {
  std::cerr << error.what() << std::endl;
  return error.exit_code();
}
