#include "trireme/parallel/served/served_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/compress/codec.h"
#include "trireme/parallel/served/internal/served_table.h"
#include "trireme/telemetry/rank_usage.h"

namespace trireme::parallel {
namespace {

// Requests that wait for other ranks' steps have arrived; a broken connection is detected separately.
constexpr double kRetry_s = 10;

// A chunk is the unit of sharding over servers, of priorities, and of waiting in a forward. So there are
// many. But each is large compared with the overhead of a message (64 KiB to 1 MiB).
constexpr std::int64_t kChunks = 128, kMinChunk = 16 << 10;

/// The optimizer state per element, in the servers' order. Names are those above the torch line.
struct ServedRule {
  std::string_view name;
  std::vector<std::string_view> states;
};

const std::array<ServedRule, 5>& served_rules() {
  static const std::array<ServedRule, 5> kRules = {{
      {"sgd", {"momentum"}},
      {"adam", {"exp_avg", "exp_avg_sq"}},
      {"adamw", {"exp_avg", "exp_avg_sq"}},
      {"adagrad", {"sum"}},
      {"rmsprop", {"square_avg", "momentum"}},
  }};
  return kRules;
}

const ServedRule& served_rule(const optim::OptimizerOptions& options) {
  const auto row = std::ranges::find(served_rules(), options.name, &ServedRule::name);
  require(row != served_rules().end(), "servers have no optimizer '", options.name, "'; they have ",
          join(served_optimizer_names()));
  require(!options.centered, "servers have no centered rmsprop");
  return *row;
}

/// All options must be given.
ps::OptimizerSpec spec_of(const optim::OptimizerOptions& options, double weight_decay) {
  ps::OptimizerSpec spec;
  spec.name = options.name;
  if (*options.lr > 0) spec.lr = *options.lr;  // every push has its own rate
  spec.weight_decay = weight_decay;
  spec.momentum = *options.momentum;
  spec.nesterov = *options.nesterov;
  spec.beta1 = options.beta1;
  spec.beta2 = *options.beta2;
  spec.alpha = options.alpha;
  spec.eps = *options.eps;
  return spec;
}

ps::TableSpec table_of(const Service& service, const ps::OptimizerSpec& optimizer,
                       std::int64_t num_elements) {
  ps::TableSpec spec;
  spec.num_elements = static_cast<std::uint64_t>(num_elements);
  spec.chunk_elements = static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(num_elements / kChunks, kMinChunk, spec.chunk_elements));
  spec.optimizer = optimizer;
  const std::int64_t staleness = service.options.staleness;
  spec.staleness = staleness < 0 ? ps::kAsynchronous : static_cast<std::uint32_t>(staleness);
  spec.apply_at = staleness == 0 ? ps::ApplyAt::kClock : ps::ApplyAt::kArrival;
  spec.compression = service.compression;
  spec.delay.lambda = service.options.delay_compensation;
  // A later run of the same name may have another model or other options, and then needs another table.
  const std::uint64_t key = ps::hash_of(spec);
  spec.name = text(service.run, " ", std::hex, key);
  return spec;
}

}  // namespace

std::vector<std::string> served_optimizer_names() {
  std::vector<std::string> names;
  for (const ServedRule& rule : served_rules()) names.emplace_back(rule.name);
  return names;
}

std::vector<std::string> served_codec_names() { return compress::codec_names(); }

ServedOptimizer::ServedOptimizer(const Service& service, const optim::OptimizerOptions& options,
                                 optim::NamedTensors parameters, comm::Group ranks)
    : Optimizer(*optim::with_defaults(options).lr),
      ranks_(std::move(ranks)),
      status_(service.status),
      mirror_(optim::make_optimizer(options, parameters)) {
  const optim::OptimizerOptions optimizer = optim::with_defaults(options);
  ps::ClientOptions client;
  client.worker = static_cast<ps::WorkerId>(ranks_.rank());
  client.host = text("rank ", ranks_.rank());
  client.coordinator = service.options.coordinator;
  client.timeout_s = service.timeout_s;
  client.retry_s = kRetry_s;
  client_ = std::make_unique<ps::Client>(client, service.loop);
  std::int64_t numel = 0, before = 0;
  for (const auto& [name, parameter] : parameters) numel += parameter.numel();
  std::vector<ServedParameter> decayed, spared;
  for (const auto& [name, parameter] : parameters) {
    require(parameter.scalar_type() == at::kFloat, "servers hold f32, and parameter ", name, " is ",
            c10::toString(parameter.scalar_type()));
    const double place = static_cast<double>(before) / static_cast<double>(std::max<std::int64_t>(numel, 1));
    (optimizer.decay_1d || parameter.dim() > 1 ? decayed : spared).push_back({name, parameter, place});
    before += parameter.numel();
  }
  add_table(service, optimizer, *optimizer.weight_decay, decayed);
  add_table(service, optimizer, 0, spared);
  // All ranks join before any of them ends its first step. Then all start with the same values.
  ranks_.barrier();
  clock_ = client_->clock();
  if (ranks_.rank() == 0) {
    for (const auto& table : tables_) table->assign();
  }
  ranks_.barrier();
  pull();
  finish_pending_updates();
}

ServedOptimizer::~ServedOptimizer() {
  // Other ranks then need not wait for the lease. A failure is ignored: unreachable servers have ended.
  if (client_) client_->leave().wait_for(1);
}

void ServedOptimizer::add_table(const Service& service, const optim::OptimizerOptions& optimizer,
                                double weight_decay, const std::vector<ServedParameter>& parameters) {
  std::int64_t numel = 0;
  for (const ServedParameter& each : parameters) numel += each.parameter.numel();
  if (numel == 0) return;
  tables_.push_back(std::make_unique<ServedTable>(*client_,
                                                  table_of(service, spec_of(optimizer, weight_decay), numel),
                                                  served_rule(optimizer).states, parameters));
  for (std::size_t i = 0; i < parameters.size(); ++i)
    places_[parameters[i].parameter.unsafeGetTensorImpl()] = {tables_.back().get(), i};
}

template <class Work>
void ServedOptimizer::timed(const Work& work) {
  const double begin_s = now_s();
  std::optional<telemetry::WaitForOthers> wait;
  if (status_ != nullptr) wait.emplace(status_->usage());
  work();
  waited_s_ += now_s() - begin_s;
}

void ServedOptimizer::gradient_is_final(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  const auto place = places_.find(parameter.unsafeGetTensorImpl());
  if (place != places_.end()) place->second.table->give(place->second.number, lr(), pushes_);
}

void ServedOptimizer::update(double lr) {
  const at::NoGradGuard no_grad;
  for (const auto& table : tables_) table->give_rest(lr, pushes_);
  if (others_clock_) staleness_ = static_cast<int>(clock_ - std::min(clock_, *others_clock_));
  client_->tick();
  ++clock_;
  pull();
  look_at_pushes(/*wait_for_all=*/false);
}

void ServedOptimizer::pull() {
  others_clock_.reset();
  for (const auto& table : tables_) table->pull();
}

void ServedOptimizer::look_at_pushes(bool wait_for_all) {
  while (!pushes_.empty() && (wait_for_all || pushes_.front().is_done())) {
    pushes_.front().get();
    pushes_.pop_front();
  }
}

void ServedOptimizer::finish_pull(const Place& place) {
  const bool says = status_ != nullptr && !place.table->has_arrived(place.number);
  const auto say = [&](std::string_view how) {
    status_->set_operation(
        text("pull of ", place.table->name_of(place.number), " from the parameter server, ", how));
  };
  if (says) say("running");
  const auto clock = place.table->finish_pull(place.number);
  if (clock) others_clock_ = std::min(others_clock_.value_or(*clock), *clock);
  if (says) say("done");
}

void ServedOptimizer::finish_pending_updates() {
  const at::NoGradGuard no_grad;
  timed([&] {
    for (const auto& table : tables_) {
      for (std::size_t i = 0; i < table->num_parameters(); ++i) finish_pull({table.get(), i});
    }
  });
}

void ServedOptimizer::finish_pending_updates(const optim::NamedTensors& parameters) {
  const at::NoGradGuard no_grad;
  timed([&] {
    for (const auto& [name, parameter] : parameters) {
      const auto place = places_.find(parameter.unsafeGetTensorImpl());
      if (place != places_.end()) finish_pull(place->second);
    }
  });
}

void ServedOptimizer::synchronize() {
  finish_pending_updates();
  timed([&] {
    look_at_pushes(/*wait_for_all=*/true);
    ranks_.barrier();
  });
  pull();
  finish_pending_updates();
}

void ServedOptimizer::pull_state() {
  const at::NoGradGuard no_grad;
  for (const auto& table : tables_) table->pull_state(mirror_->state());
}

void ServedOptimizer::end_broken_steps() {
  at::Tensor is_amid = at::zeros({1}, at::kInt);
  for (const auto& table : tables_) {
    if (table->is_amid_step()) is_amid.fill_(1);
    table->forget_step();
    table->forget_left_out();
  }
  ranks_.all_reduce(is_amid, comm::ReduceOp::kMax);
  if (is_amid.item<int>() == 0) return;
  // Pushes that servers hold for the end of a step would be added to the next step.
  pushes_.clear();
  client_->tick();
  ++clock_;
  pull();
  for (const auto& table : tables_) table->wait_for_pull();
}

void ServedOptimizer::restored() {
  const at::NoGradGuard no_grad;
  end_broken_steps();
  ranks_.barrier();
  if (ranks_.rank() == 0) {
    for (const auto& table : tables_) table->restore(mirror_->state());
  }
  ranks_.barrier();
  pull();
  finish_pending_updates();
}

}  // namespace trireme::parallel
