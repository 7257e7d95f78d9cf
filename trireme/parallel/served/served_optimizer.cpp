#include "trireme/parallel/served/served_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

// What waits for the steps of other ranks has arrived; connections that break are noticed by themselves.
constexpr double kRetry_s = 10;

/// What servers keep for each element, in their order; names are those of the state above the torch line.
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

ps::OptimizerSpec spec_of(const optim::OptimizerOptions& options, double weight_decay) {
  ps::OptimizerSpec spec;
  spec.name = options.name;
  if (options.lr > 0) spec.lr = options.lr;  // every push says its own
  spec.weight_decay = weight_decay;
  spec.momentum = options.momentum;
  spec.nesterov = options.nesterov;
  spec.beta1 = options.beta1;
  spec.beta2 = options.beta2;
  spec.alpha = options.alpha;
  spec.eps = options.eps;
  return spec;
}

ps::TableSpec table_of(const Service& service, const ps::OptimizerSpec& optimizer,
                       std::int64_t num_elements) {
  ps::TableSpec spec;
  spec.num_elements = static_cast<std::uint64_t>(num_elements);
  spec.optimizer = optimizer;
  const std::int64_t staleness = service.options.staleness;
  spec.staleness = staleness < 0 ? ps::kAsynchronous : static_cast<std::uint32_t>(staleness);
  spec.apply_at = staleness == 0 ? ps::ApplyAt::kClock : ps::ApplyAt::kArrival;
  // A later run of that name may be another model, with other options: that is another table.
  const std::uint64_t key = ps::hash_of(spec);
  spec.name = text(service.run, " ", std::hex, key);
  return spec;
}

at::Tensor as_tensor(float* values, const at::Tensor& like) {
  return at::from_blob(values, like.sizes(), at::TensorOptions(at::kFloat));
}

}  // namespace

std::vector<std::string> served_optimizer_names() {
  std::vector<std::string> names;
  for (const ServedRule& rule : served_rules()) names.emplace_back(rule.name);
  return names;
}

/// Parameters in one table.
struct ServedOptimizer::Part {
  struct Item {
    std::string name;
    at::Tensor parameter;
    std::size_t begin = 0;  ///< of its elements in the table
  };
  ps::TableSpec spec;
  ps::TableId table = 0;
  std::vector<Item> items;
  std::vector<std::string_view> states;
  std::vector<float> values;  ///< as they were pulled
  /// What is pushed; a buffer is used again when everybody has it.
  std::vector<std::shared_ptr<std::vector<float>>> gradients;
  std::optional<ps::Pending> pulling;

  std::size_t num_elements() const { return values.size(); }

  std::shared_ptr<std::vector<float>> free_buffer() {
    for (const auto& buffer : gradients) {
      if (buffer.use_count() == 1) return buffer;
    }
    return gradients.emplace_back(std::make_shared<std::vector<float>>(num_elements()));
  }

  void values_to_parameters() {
    for (Item& item : items) item.parameter.copy_(as_tensor(values.data() + item.begin, item.parameter));
  }
  std::vector<float> values_of_parameters() const {
    std::vector<float> all(num_elements());
    for (const Item& item : items) as_tensor(all.data() + item.begin, item.parameter).copy_(item.parameter);
    return all;
  }

  /// The state of that kind, as the servers' tables lie; zeros where this rank has none of it.
  std::vector<float> state_row(const std::map<std::string, at::Tensor>& state, std::string_view kind) const {
    std::vector<float> row(num_elements());
    for (const Item& item : items) {
      const auto found = state.find(text(kind, "/", item.name));
      if (found != state.end()) as_tensor(row.data() + item.begin, item.parameter).copy_(found->second);
    }
    return row;
  }
  void take_state_row(const std::map<std::string, at::Tensor>& state, std::string_view kind,
                      std::vector<float>& row) const {
    for (const Item& item : items) {
      const auto found = state.find(text(kind, "/", item.name));
      if (found != state.end())
        at::Tensor(found->second).copy_(as_tensor(row.data() + item.begin, item.parameter));
    }
  }
};

ServedOptimizer::ServedOptimizer(const Service& service, const optim::OptimizerOptions& optimizer,
                                 optim::NamedTensors parameters, comm::Group ranks)
    : Optimizer(optimizer.lr),
      ranks_(std::move(ranks)),
      mirror_(optim::make_optimizer(optimizer, parameters)) {
  ps::ClientOptions client;
  client.worker = static_cast<ps::WorkerId>(ranks_.rank());
  client.host = text("rank ", ranks_.rank());
  client.coordinator = service.options.coordinator;
  client.timeout_s = service.timeout_s;
  client.retry_s = kRetry_s;
  client_ = std::make_unique<ps::Client>(client, service.loop);
  const auto first_spared =
      optimizer.decay_1d ? parameters.end()
                         : std::stable_partition(parameters.begin(), parameters.end(),
                                                 [](const auto& item) { return item.second.dim() > 1; });
  add_part(service, optimizer, optimizer.weight_decay, {parameters.begin(), first_spared});
  add_part(service, optimizer, 0, {first_spared, parameters.end()});
  // All have joined before the first step of any ends; then all begin with the same values.
  ranks_.barrier();
  if (ranks_.rank() == 0) {
    for (const auto& part : parts_) client_->assign(part->table, part->values_of_parameters()).get();
  }
  ranks_.barrier();
  pull();
  arrive();
}

ServedOptimizer::~ServedOptimizer() {
  // The others do not have to wait for the lease; whoever cannot be told has gone himself.
  if (client_) client_->leave().wait_for(1);
}

void ServedOptimizer::add_part(const Service& service, const optim::OptimizerOptions& optimizer,
                               double weight_decay, optim::NamedTensors parameters) {
  if (parameters.empty()) return;
  auto part = std::make_unique<Part>();
  std::int64_t numel = 0;
  for (const auto& [name, parameter] : parameters) {
    require(parameter.scalar_type() == at::kFloat, "servers hold f32, and parameter ", name, " is ",
            c10::toString(parameter.scalar_type()));
    part->items.push_back({name, parameter, static_cast<std::size_t>(numel)});
    numel += parameter.numel();
  }
  part->values.resize(static_cast<std::size_t>(numel));
  part->states = served_rule(optimizer).states;
  part->spec = table_of(service, spec_of(optimizer, weight_decay), numel);
  part->table = client_->open_table(part->spec);
  parts_.push_back(std::move(part));
}

template <class Work>
void ServedOptimizer::timed(const Work& work) {
  const double begin_s = now_s();
  work();
  waited_s_ += now_s() - begin_s;
}

void ServedOptimizer::update(double lr) {
  const at::NoGradGuard no_grad;
  for (const auto& part : parts_) {
    const auto buffer = part->free_buffer();
    for (const Part::Item& item : part->items) {
      const at::Tensor& gradient = item.parameter.grad();
      require(gradient.defined(), "parameter ", item.name,
              " got no gradient in this step, and servers update whole tables: use it in every step, or set "
              "requires_grad to false");
      as_tensor(buffer->data() + item.begin, item.parameter).copy_(gradient);
    }
    const wire::Buffer values(buffer, std::as_bytes(std::span(*buffer)));
    pushes_.push_back(client_->push(part->table, values, {.lr = lr}));
  }
  client_->tick();
  pull();
  look_at_pushes(/*wait_for_all=*/false);
}

void ServedOptimizer::pull() {
  for (const auto& part : parts_) part->pulling = client_->pull(part->table, part->values);
}

void ServedOptimizer::look_at_pushes(bool wait_for_all) {
  while (!pushes_.empty() && (wait_for_all || pushes_.front().is_done())) {
    pushes_.front().get();
    pushes_.pop_front();
  }
}

void ServedOptimizer::arrive() {
  const at::NoGradGuard no_grad;
  timed([&] {
    for (const auto& part : parts_) {
      if (!part->pulling) continue;
      std::exchange(part->pulling, std::nullopt)->get();
      part->values_to_parameters();
    }
  });
}

void ServedOptimizer::meet() {
  arrive();
  timed([&] {
    look_at_pushes(/*wait_for_all=*/true);
    ranks_.barrier();
  });
  pull();
  arrive();
}

void ServedOptimizer::bring_state() {
  const at::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> state = mirror_->state();
  for (const auto& part : parts_) {
    std::vector<std::vector<float>> rows(part->states.size(), std::vector<float>(part->num_elements()));
    std::uint64_t num_updates = 0;
    for (std::uint64_t chunk = 0; chunk < part->spec.num_chunks(); ++chunk) {
      const ps::Result pulled = client_->pull_state(part->table, chunk).get();
      const std::size_t count = part->spec.elements_of(chunk), begin = chunk * part->spec.chunk_elements;
      for (std::size_t i = 0; i < rows.size(); ++i)
        std::memcpy(rows[i].data() + begin, pulled.values.bytes().data() + (i + 1) * count * sizeof(float),
                    count * sizeof(float));
      num_updates = pulled.num_updates;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) part->take_state_row(state, part->states[i], rows[i]);
    for (const Part::Item& item : part->items) {
      const auto found = state.find(text("step/", item.name));
      if (found != state.end()) at::Tensor(found->second).fill_(static_cast<double>(num_updates));
    }
  }
}

void ServedOptimizer::restored() {
  const at::NoGradGuard no_grad;
  ranks_.barrier();
  if (ranks_.rank() == 0) {
    const std::map<std::string, at::Tensor> state = mirror_->state();
    for (const auto& part : parts_) {
      std::vector<std::vector<float>> rows = {part->values_of_parameters()};
      for (const std::string_view kind : part->states) rows.push_back(part->state_row(state, kind));
      const auto count_of = state.find(text("step/", part->items.front().name));
      const auto num_updates =
          count_of == state.end() ? 0 : static_cast<std::uint64_t>(count_of->second.item<double>());
      std::deque<ps::Pending> under_way;
      for (std::uint64_t chunk = 0; chunk < part->spec.num_chunks(); ++chunk) {
        const std::size_t count = part->spec.elements_of(chunk), begin = chunk * part->spec.chunk_elements;
        std::vector<std::byte> bytes(rows.size() * count * sizeof(float));
        for (std::size_t i = 0; i < rows.size(); ++i)
          std::memcpy(bytes.data() + i * count * sizeof(float), rows[i].data() + begin,
                      count * sizeof(float));
        under_way.push_back(
            client_->restore_chunk(part->table, chunk, wire::Buffer::of(std::move(bytes)), num_updates));
      }
      for (const ps::Pending& each : under_way) each.get();
    }
  }
  ranks_.barrier();
  pull();
  arrive();
}

}  // namespace trireme::parallel
