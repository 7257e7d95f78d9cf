#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/base/median.h"
#include "trireme/comm/host_groups.h"
#include "trireme/optim/offload.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/estimate/internal/codec_costs.h"
#include "trireme/train/estimate/internal/measured_model.h"
#include "trireme/train/estimate/measurements.h"
#include "trireme/train/estimate/process_memory.h"
#include "trireme/train/parts/internal/offloading.h"
#include "trireme/train/plan/placement.h"

namespace trireme::train {
namespace {

/// Repetitions of each timed exchange and update. Small ones are short, so that disturbances weigh more.
constexpr int kRepeats = 7, kRepeatsOfSmall = 51;
constexpr std::int64_t kSmallBytes = 4 << 10, kLargeBytes = 8 << 20;
constexpr std::int64_t kSmallNumel = 1 << 14, kMaxNumel = 1 << 23;

/// The median of several runs, after a warm-up run.
double median_s(const std::function<void()>& work, int repeats) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    const double begin_s = now_s();
    work();
    if (repeat > 0) seconds.push_back(now_s() - begin_s);
  }
  return median(seconds);
}

class ExchangeTimer {
 public:
  ExchangeTimer(const comm::Group& group, c10::Device device)
      : world_(group), options_(at::TensorOptions(at::kFloat).device(device)) {}

  ExchangeCosts costs() {
    ExchangeCosts costs{.ranks = world_.size()};
    if (world_.size() == 1) return costs;
    costs.all_reduce = line([&](at::Tensor& whole, at::Tensor&) { world_.all_reduce(whole); });
    costs.reduce_scatter =
        line([&](at::Tensor& whole, at::Tensor& part) { world_.reduce_scatter(part, whole); });
    costs.all_gather = line([&](at::Tensor& whole, at::Tensor& part) { world_.all_gather(whole, part); });
    costs.send = send_line();
    return costs;
  }

 private:
  using Exchange = std::function<void(at::Tensor& whole, at::Tensor& part)>;

  double seconds_of(std::int64_t bytes, const Exchange& exchange) {
    const std::int64_t numel = bytes / 4 / world_.size() * world_.size();
    at::Tensor whole = world_.allocate(numel, options_),
               part = world_.allocate(numel / world_.size(), options_);
    whole.zero_();
    part.zero_();
    world_.barrier();
    return median_s([&] { exchange(whole, part); }, bytes <= kSmallBytes ? kRepeatsOfSmall : kRepeats);
  }
  CostLine line(const Exchange& exchange) {
    const auto small = static_cast<double>(kSmallBytes), large = static_cast<double>(kLargeBytes);
    return line_through(small, seconds_of(kSmallBytes, exchange), large, seconds_of(kLargeBytes, exchange));
  }

  /// Ranks send in a ring, all at the same time.
  CostLine send_line() {
    const int next = (world_.rank() + 1) % world_.size(),
              before = (world_.rank() + world_.size() - 1) % world_.size();
    return line([&](at::Tensor& whole, at::Tensor&) {
      at::Tensor came = at::empty_like(whole);
      comm::Pending sent = world_.send_async(whole, next), received = world_.recv_async(came, before);
      sent.wait();
      received.wait();
    });
  }

  comm::Group world_;
  const at::TensorOptions options_;
};

/// An update of `numel` parameters, with the norm if gradients are clipped. `offload`: null for state in
/// memory.
double update_s(const RunConfig& config, std::int64_t numel, c10::Device device,
                std::shared_ptr<optim::Offload> offload = nullptr) {
  constexpr std::int64_t kRow = 1024;
  at::Tensor parameter = at::zeros({std::max<std::int64_t>(numel / kRow, 1), std::min(numel, kRow)},
                                   at::TensorOptions(at::kFloat).device(device));
  parameter.mutable_grad() = at::ones_like(parameter);
  const optim::NamedTensors parameters = {{"weight", parameter}};
  const auto optimizer = optim::make_optimizer(config.optimizer, parameters, std::move(offload));
  return median_s(
      [&] {
        if (config.train.clip_norm > 0) optim::clip_grad_norm(parameters, config.train.clip_norm);
        optimizer->step();
      },
      numel <= kSmallNumel ? kRepeatsOfSmall : kRepeats);
}

CostLine update_line(const RunConfig& config, std::int64_t numel, c10::Device device) {
  numel = std::clamp(numel, 2 * kSmallNumel, kMaxNumel);
  return line_through(static_cast<double>(kSmallNumel), update_s(config, kSmallNumel, device),
                      static_cast<double>(numel), update_s(config, numel, device));
}

/// The same with the optimizer's state in files. Not finite: they cannot be written here.
CostLine update_in_files_line(const RunConfig& config, std::int64_t numel, const comm::Context& context) {
  constexpr double kMib = 1024.0 * 1024.0;
  numel = std::clamp(numel, 2 * kSmallNumel, kMaxNumel);
  const auto seconds_of = [&](std::int64_t some) {
    return update_s(config, some, c10::kCPU,
                    std::make_shared<optim::Offload>(optim::Offload::Options{
                        .folder = existing_folder(offload_folder(config)),
                        .owner = text("rank ", context.rank()),
                        .part_bytes = static_cast<std::int64_t>(config.offload.part_mib * kMib),
                        .state = optim::OffloadPlace::kFiles}));
  };
  try {
    return line_through(static_cast<double>(kSmallNumel), seconds_of(kSmallNumel), static_cast<double>(numel),
                        seconds_of(numel));
  } catch (const DataError&) {
    constexpr double kUnknown = std::numeric_limits<double>::infinity();
    return {.fixed_s = kUnknown, .unit_s = kUnknown};
  }
}

std::int64_t num_parameters(const ModelUse& model) {
  std::int64_t numel = 0;
  for (const LayerUse& layer : model.layers) numel += numel_of(layer);
  return numel;
}

/// All numbers that ranks measure differently. They agree on the means.
std::vector<double*> times_of(Measurements& measured) {
  std::vector<double*> times;
  for (ModelUse& model : measured.costs) {
    for (LayerUse& layer : model.layers) {
      LayerTime& time = layer.time;
      times.insert(times.end(),
                   {&time.forward_s, &time.backward_s, &time.backward_input_s, &time.backward_weight_s,
                    &time.bare_forward_s, &time.recomputed_backward_s, &layer.memory.kept.forward_s});
    }
  }
  std::vector<CostLine*> lines = {&measured.update, &measured.update_in_files};
  for (ExchangeCosts* costs : {&measured.exchanges, &measured.within_host}) {
    lines.insert(lines.end(), {&costs->all_reduce, &costs->reduce_scatter, &costs->all_gather, &costs->send});
    for (CodecCost& each : costs->codecs) lines.push_back(&each.all_reduce);
    times.push_back(&costs->share_of_core);
  }
  for (CostLine* line : lines) times.insert(times.end(), {&line->fixed_s, &line->unit_s});
  times.push_back(&measured.base_bytes);
  return times;
}

void agree(Measurements& measured, comm::Context& context) {
  const std::vector<double*> times = times_of(measured);
  at::Tensor sums = at::empty({static_cast<std::int64_t>(times.size())}, at::kDouble);
  auto* next = sums.mutable_data_ptr<double>();
  for (const double* time : times) *next++ = *time;
  context.world().all_reduce(sums);
  next = sums.mutable_data_ptr<double>();
  for (double* time : times) *time = *next++ / context.world_size();
  if (!std::isfinite(measured.update_in_files.unit_s)) measured.update_in_files = {};
}

/// If ranks compute on all cores, exchanges take core time from them.
double share_of_core(const comm::Context& context) {
  const double threads = static_cast<double>(at::get_num_threads()) * context.world_size();
  const auto cores = static_cast<double>(allowed_cores().size());
  return threads < cores ? 0 : 1;
}

/// Measures between all ranks, and within a host if several hosts have equally many ranks.
void measure_exchanges(Measurements& measured, const RunConfig& config, comm::Context& context,
                       c10::Device device) {
  measured.exchanges = ExchangeTimer(context.world(), device).costs();
  measured.exchanges.codecs = measure_codecs(config, context.world(), device);
  measured.exchanges.share_of_core = share_of_core(context);
  if (comm::num_hosts(context.world()) == 1) return;
  const comm::HostGroups hosts = comm::make_host_groups(context.world());
  const auto is_alike = [&](const std::vector<int>& ranks) {
    return ranks.size() == hosts.ranks.front().size();
  };
  if (!std::ranges::all_of(hosts.ranks, is_alike)) return;
  measured.ranks_of_host = static_cast<int>(hosts.ranks.front().size());
  if (!hosts.inside) return;
  measured.within_host = ExchangeTimer(*hosts.inside, device).costs();
  measured.within_host.codecs = measure_codecs(config, *hosts.inside, device);
  measured.within_host.share_of_core = measured.exchanges.share_of_core;
}

}  // namespace

Measurements measure_costs(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                           const CostOptions& options) {
  std::vector<std::int64_t> sizes = options.samples;
  if (sizes.empty()) {
    const std::int64_t samples = std::min(plan.samples_of_microbatch(), data.train->size());
    sizes = {std::max<std::int64_t>(samples / 4, 1)};
    if (samples > sizes.front()) sizes.push_back(samples);
  }
  MeasuredModel model = measure_model(
      plan, context, data,
      {.samples = sizes, .times = true, .model = options.model, .objective = options.objective});
  Measurements measured{.processor = processor().model,
                        .threads = at::get_num_threads(),
                        .model = model_key(plan),
                        .costs = std::move(model.costs),
                        .exchanges = {},
                        .update = {},
                        .base_bytes = 0};
  const std::int64_t least = measured.costs.front().samples;
  if (least > sizes.front()) measured.least_samples = least;
  if (device_for(plan, context).is_cpu()) measured.base_bytes = static_cast<double>(measured_base_bytes());
  if (options.other_form != nullptr) {
    measured.exchanges = options.other_form->exchanges;
    measured.within_host = options.other_form->within_host;
    measured.ranks_of_host = options.other_form->ranks_of_host;
    measured.update = options.other_form->update;
    measured.update_in_files = options.other_form->update_in_files;
  } else {
    const c10::Device device = device_for(plan, context);
    const std::int64_t numel = num_parameters(measured.costs.back());
    measure_exchanges(measured, plan.config(), context, device);
    measured.update = update_line(plan.config(), numel, device);
    if (device.is_cpu()) measured.update_in_files = update_in_files_line(plan.config(), numel, context);
  }
  agree(measured, context);
  return measured;
}

}  // namespace trireme::train
