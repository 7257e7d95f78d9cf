#include "bench/pipeline_resnet50/sweep.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/clock_offset.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/model/model.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/pipeline/timed_actions.h"
#include "trireme/train/parts/convolutions.h"

namespace trireme::bench {
namespace {

constexpr int kClasses = 1000;
constexpr int kFirstLayerBehindLayer2 = 8;  // stem, 3 blocks of layer1, 4 of layer2
constexpr double kRate = 0.001;

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

optim::NamedTensors named_parameters(const model::Model& model) {
  optim::NamedTensors all;
  for (const auto& item : model.named_parameters()) all.emplace_back(item.key(), item.value());
  return all;
}

std::shared_ptr<model::Model> make_resnet50(const SweepOptions& options) {
  return model::make_model({.name = "resnet50"}, {3, options.image_size, options.image_size}, kClasses,
                           /*seed=*/1);
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// End of the step: the latest end of a rank's work and of its update after it.
double ideal_of(const schedule::Program& program, const schedule::Costs& costs,
                const std::vector<double>& update_s) {
  const schedule::TimedRanks ranks = schedule::timed(program, schedule::simulate(program, costs));
  double last_s = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    double work_end_s = 0;
    for (const schedule::TimedAction& each : ranks[rank]) {
      if (schedule::is_work(each.action)) work_end_s = std::max(work_end_s, each.end_s);
    }
    last_s = std::max(last_s, work_end_s + update_s[rank]);
  }
  return last_s;
}

class Sweep {
 public:
  Sweep(comm::Context& context, const SweepOptions& options)
      : context_(context),
        options_(options),
        first_clock_(comm::measure_clock_offset(context.world(), now_ns)),
        model_(make_resnet50(options)),
        staged_(make_resnet50(options)),
        images_(at::randn({options.batch, 3, options.image_size, options.image_size})),
        targets_(at::zeros({options.batch, kClasses})) {
    targets_.scatter_(1, at::randint(kClasses, {options.batch, 1}, at::kLong), 1);
    context.set_trace(&trace_);
    trace_.begin_step(0);
    add("single", options.batch, "");
    add("naive", options.batch, "naive");
    for (const int split : options.splits) add("pipelined", split, options.schedule);
  }
  ~Sweep() { context_.set_trace(nullptr); }
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  std::vector<Way> run() {
    for (Entry& entry : entries_) step(entry);  // warm-up: the stages learn shapes, and allocators fill
    for (Entry& entry : entries_) {
      entry.way.seconds.clear();
      entry.spans.clear();
      entry.updates_s.clear();
    }
    for (int pass = 0; pass < options_.repeats; ++pass) {
      for (Entry& entry : entries_) step(entry);
    }
    const telemetry::AlignedClock clock(first_clock_, comm::measure_clock_offset(context_.world(), now_ns));
    std::vector<Way> ways;
    for (Entry& entry : entries_) ways.push_back(finished(entry, clock));
    return ways;
  }

 private:
  struct Entry {
    Way way;
    model::ConvolutionChoice convolutions = {};          ///< fastest for its size of micro-batch
    std::unique_ptr<parallel::Pipeline> pipe = nullptr;  ///< null: one process
    std::unique_ptr<optim::Optimizer> optimizer = nullptr;
    std::vector<parallel::TimeSpan> spans = {};
    std::vector<double> updates_s = {};
  };

  void add(const std::string& name, std::int64_t split, const std::string& schedule) {
    const int num_microbatches = static_cast<int>((options_.batch + split - 1) / split);
    Entry entry{.way = {.name = name, .split = split, .num_microbatches = num_microbatches, .seconds = {}}};
    entry.convolutions = convolutions_for(split);
    if (!schedule.empty()) {
      entry.pipe = std::make_unique<parallel::Pipeline>(
          context_, staged_->layers(),
          parallel::PipelineOptions{
              .schedule = schedule, .num_microbatches = num_microbatches, .cuts = {kFirstLayerBehindLayer2}});
      entry.way.program = entry.pipe->program();
    }
    entry.optimizer =
        optim::make_optimizer({.name = "sgd", .lr = kRate, .momentum = 0},
                              entry.pipe ? entry.pipe->parameters() : named_parameters(*model_));
    entries_.push_back(std::move(entry));
  }

  model::ConvolutionChoice convolutions_for(std::int64_t split) {
    return train::convolutions_for(train::convolution_rule(options_.convolution, "auto"), train::Precision(),
                                   context_, *model_, images_.narrow(0, 0, 1), split);
  }

  /// Measures a step between two barriers.
  void step(Entry& entry) {
    const model::ConvolutionScope convolutions(entry.convolutions);
    context_.world().barrier();
    const std::int64_t begin_ns = now_ns();
    if (entry.pipe) {
      entry.pipe->step(images_, targets_, mean_square);
    } else if (context_.is_main()) {
      torch::autograd::backward({mean_square(model_->forward(images_), targets_)}, {});
    }
    const std::int64_t end_ns = now_ns();
    if (entry.pipe || context_.is_main()) {
      entry.optimizer->step();
      for (const auto& item : (entry.pipe ? staged_ : model_)->parameters()) item.mutable_grad().reset();
    }
    entry.updates_s.push_back(1e-9 * static_cast<double>(now_ns() - end_ns));
    context_.world().barrier();
    entry.way.seconds.push_back(1e-9 * static_cast<double>(now_ns() - begin_ns));
    entry.spans.push_back({.begin_ns = begin_ns, .end_ns = end_ns});
  }

  Way finished(Entry& entry, const telemetry::AlignedClock& clock) {
    Way& way = entry.way;
    if (!entry.pipe) return std::move(way);
    std::vector<std::vector<double>> updates_s;  // by rank, by pass
    for (const std::string& line : context_.world().all_gather_text(join_numbers(entry.updates_s)))
      updates_s.push_back(parse_numbers(line));
    for (const auto& of_rank : updates_s) way.update_s.push_back(mean_of(of_rank));
    for (std::size_t pass = 0; pass < entry.spans.size(); ++pass) {
      way.steps.push_back(
          parallel::gather_actions(context_.world(), parallel::actions_in(trace_, entry.spans[pass], clock)));
      std::vector<double> of_pass_s;
      for (const auto& of_rank : updates_s) of_pass_s.push_back(of_rank[pass]);
      way.ideal_s.push_back(
          ideal_of(way.program, schedule::mean_costs(way.program, {way.steps.back()}), of_pass_s));
    }
    way.costs = schedule::mean_costs(way.program, way.steps);
    return std::move(way);
  }

  static std::string join_numbers(const std::vector<double>& values) {
    std::string line;
    for (const double value : values) line += text(value, ' ');
    return line;
  }
  static std::vector<double> parse_numbers(const std::string& line) {
    std::istringstream in(line);
    std::vector<double> values;
    for (double value = 0; in >> value;) values.push_back(value);
    return values;
  }

  comm::Context& context_;
  const SweepOptions& options_;
  const telemetry::ClockSample first_clock_;
  telemetry::Trace trace_;
  std::shared_ptr<model::Model> model_;   ///< for one process
  std::shared_ptr<model::Model> staged_;  ///< for the pipelines: all have the same cuts
  at::Tensor images_, targets_;
  std::vector<Entry> entries_;
};

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return {.median = median, .low = values.front(), .high = values.back()};
}

std::vector<Way> run_sweep(comm::Context& context, const SweepOptions& options) {
  require(context.world_size() == 2, "the sweep is for 2 ranks, found ", context.world_size(),
          ": trireme bench pipeline-resnet50 starts them");
  // Images of 32 to 63 pixels have one value per channel in layer4, and batch norm needs more than one.
  const int least = options.image_size < 64 ? 2 : 1;
  for (const int split : options.splits) {
    require(split >= 1 && split <= options.batch, "a split of ", split, " images does not fit a batch of ",
            options.batch);
    require(split >= least && (options.batch % split == 0 || options.batch % split >= least),
            "batch norm cannot work on a micro-batch of one image of ", options.image_size, "x",
            options.image_size, ", which split ", split,
            " leads to: take images of 64 or more, or other splits");
  }
  return Sweep(context, options).run();
}

}  // namespace trireme::bench
