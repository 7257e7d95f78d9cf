#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>

#include "trireme/base/clock.h"
#include "trireme/base/host.h"
#include "trireme/base/median.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/estimate/internal/measured_model.h"
#include "trireme/train/estimate/measurements.h"
#include "trireme/train/plan/placement.h"

namespace trireme::train {
namespace {

constexpr int kRepeats = 7;  ///< of each exchange and update that is timed
constexpr std::int64_t kSmallBytes = 4 << 10, kLargeBytes = 8 << 20;
constexpr std::int64_t kSmallNumel = 1 << 14, kMostNumel = 1 << 23;

/// The median of several, after one that does not count.
double median_s(const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const double begin_s = now_s();
    work();
    if (repeat > 0) seconds.push_back(now_s() - begin_s);
  }
  return median(seconds);
}

/// Through two points; not below 0.
CostLine line_through(double small, double small_s, double large, double large_s) {
  const double unit_s = std::max(0.0, (large_s - small_s) / (large - small));
  return {.fixed_s = std::max(0.0, small_s - unit_s * small), .unit_s = unit_s};
}

class ExchangeTimer {
 public:
  ExchangeTimer(comm::Context& context, c10::Device device)
      : world_(context.world()), options_(at::TensorOptions(at::kFloat).device(device)) {}

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
    return median_s([&] { exchange(whole, part); });
  }
  CostLine line(const Exchange& exchange) {
    const auto small = static_cast<double>(kSmallBytes), large = static_cast<double>(kLargeBytes);
    return line_through(small, seconds_of(kSmallBytes, exchange), large, seconds_of(kLargeBytes, exchange));
  }

  /// Ranks in a ring; all send at the same time.
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

  comm::Group& world_;
  const at::TensorOptions options_;
};

/// Of so many parameters: the optimizer's update, and the norm where gradients are clipped.
double update_s(const RunConfig& config, std::int64_t numel, c10::Device device) {
  constexpr std::int64_t kRow = 1024;
  at::Tensor parameter = at::zeros({std::max<std::int64_t>(numel / kRow, 1), std::min(numel, kRow)},
                                   at::TensorOptions(at::kFloat).device(device));
  parameter.mutable_grad() = at::ones_like(parameter);
  const optim::NamedTensors parameters = {{"weight", parameter}};
  const auto optimizer = optim::make_optimizer(config.optimizer, parameters);
  return median_s([&] {
    if (config.train.clip_norm > 0) optim::clip_grad_norm(parameters, config.train.clip_norm);
    optimizer->step();
  });
}

CostLine update_line(const RunConfig& config, std::int64_t numel, c10::Device device) {
  numel = std::clamp(numel, 2 * kSmallNumel, kMostNumel);
  return line_through(static_cast<double>(kSmallNumel), update_s(config, kSmallNumel, device),
                      static_cast<double>(numel), update_s(config, numel, device));
}

std::int64_t num_parameters(const ModelUse& model) {
  std::int64_t numel = 0;
  for (const LayerUse& layer : model.layers) numel += numel_of(layer);
  return numel;
}

/// Every number that is a time, so that ranks can agree on its mean.
std::vector<double*> times_of(Measurements& measured) {
  std::vector<double*> times;
  for (ModelUse& model : measured.costs) {
    for (LayerUse& layer : model.layers) {
      LayerTime& time = layer.time;
      times.insert(times.end(), {&time.forward_s, &time.backward_s, &time.backward_input_s,
                                 &time.backward_weight_s, &layer.memory.kept.forward_s});
    }
  }
  ExchangeCosts& exchanges = measured.exchanges;
  for (CostLine* line : {&exchanges.all_reduce, &exchanges.reduce_scatter, &exchanges.all_gather,
                         &exchanges.send, &measured.update})
    times.insert(times.end(), {&line->fixed_s, &line->unit_s});
  times.push_back(&exchanges.share_of_core);
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
}

/// Ranks that compute on as many cores as there are lose the time of their exchanges.
double share_of_core(const comm::Context& context) {
  const double threads = static_cast<double>(at::get_num_threads()) * context.world_size();
  const auto cores = static_cast<double>(allowed_cores().size());
  return threads < cores ? 0 : 1;
}

}  // namespace

Measurements measure_costs(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data) {
  const std::int64_t samples = std::min(plan.samples_of_microbatch(), data.train->size()),
                     fewer = std::max<std::int64_t>(samples / 4, 1);
  std::vector<std::int64_t> sizes = {fewer};
  if (samples > fewer) sizes.push_back(samples);
  MeasuredModel model = measure_model(plan, context, data, {.samples = sizes, .times = true});
  const c10::Device device = device_for(plan, context);
  Measurements measured{.processor = processor().model,
                        .threads = at::get_num_threads(),
                        .model = model_key(plan),
                        .costs = std::move(model.costs),
                        .exchanges = ExchangeTimer(context, device).costs(),
                        .update = {}};
  measured.update = update_line(plan.config(), num_parameters(measured.costs.back()), device);
  measured.exchanges.share_of_core = share_of_core(context);
  agree(measured, context);
  return measured;
}

}  // namespace trireme::train
