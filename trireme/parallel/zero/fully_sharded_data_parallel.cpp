#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/skips.h"
#include "trireme/optim/norms.h"
#include "trireme/optim/wrapped_parameter.h"
#include "trireme/parallel/data/internal/replicas.h"
#include "trireme/parallel/data/sparse_embeddings.h"
#include "trireme/parallel/zero/internal/sharded_weights.h"
#include "trireme/parallel/zero/rounded_parameters.h"

namespace trireme::parallel {
namespace {

const FullyShardedOptions& checked(const FullyShardedOptions& options,
                                   const std::vector<model::Layer>& layers) {
  require(options.zero.stage != ZeroStage::kNone,
          "nothing is shared out with ZeroStage::kNone: take DistributedDataParallel, or another stage");
  require(options.zero.gathered_stages >= 0,
          "layers that are gathered at a time are a number, or 0 for all, not ",
          options.zero.gathered_stages);
  require(!layers.empty(), "there are no layers to share out");
  return options;
}

/// Names that more than one layer lists.
std::set<std::string> shared_names(const std::vector<model::Layer>& layers) {
  std::set<std::string> seen, shared;
  for (const model::Layer& layer : layers) {
    std::set<std::string> mine;
    for (const auto& [name, parameter] : layer.parameters) mine.insert(name);
    for (const std::string& name : mine) {
      if (!seen.insert(name).second) shared.insert(name);
    }
  }
  return shared;
}

/// It is what a layer got, and not its own.
bool is_passed_on(const at::Tensor& output, const Fields& inputs) {
  return std::ranges::any_of(inputs, [&](const batch::Field& input) {
    return input.tensor.is_same(output) && input.tensor.grad_fn() == output.grad_fn();
  });
}

DataParallelOptions when_asked(DataParallelOptions options) {
  options.end = ReductionEnd::kOnRequest;
  return options;
}

double summed_over(comm::Group& group, double value) {
  at::Tensor sum = at::full({1}, value, at::kDouble);
  group.all_reduce(sum);
  return sum.item<double>();
}

}  // namespace

/// A forward of a unit whose graph lives.
struct UnitUse {
  bool is_over = false;  ///< backward has come to it
};

/// A layer, the shards of its weights, and where its passes are.
struct Unit {
  model::Layer layer;
  std::unique_ptr<ShardedWeights> weights;
  std::vector<std::weak_ptr<UnitUse>> uses = {};
  bool in_pass = false;  ///< its gradients are being made, or have been in this pass
  bool is_reduced = false;

  /// Backward will come to it.
  bool is_expected() {
    std::erase_if(uses, [](const auto& use) {
      const auto alive = use.lock();
      return alive == nullptr || alive->is_over;
    });
    return !uses.empty();
  }
};

/// What forward and the hooks of backward do with the units. The backward of a graph that outlives it is
/// refused.
class FullyShardedDataParallel::Passes : public std::enable_shared_from_this<Passes> {
 public:
  Passes(comm::Group group, std::vector<model::Layer> layers, const FullyShardedOptions& options);
  Fields forward(const Fields& input);
  void zero_grad();
  double clip_grad_norm(double max_norm);
  void weights_changed() {
    for (Unit& unit : units_) unit.weights->changed();
  }
  double waited_s() const;

  bool reduces = true;  ///< no pass is under no_sync
  optim::NamedTensors parameters, buffers;
  Pieces pieces;

 private:
  class PassEnd;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  void add_unit(model::Layer layer, const FullyShardedOptions& options,
                const std::shared_ptr<BucketPool>& buckets, const std::set<std::string>& shared);
  void add_shared(const FullyShardedOptions& options, const std::set<std::string>& shared);
  void check_modules() const;
  Fields compute(std::size_t number, const Fields& values);
  void enter(std::size_t number);
  void leave();
  void reduce(Unit& unit);
  void begin_pass();
  void end_pass();
  void drop_pass();
  /// Layers that are gathered, or on their way.
  std::size_t at_a_time() const { return gathered_ == 0 ? 2 : static_cast<std::size_t>(gathered_); }

  const std::shared_ptr<const optim::Wrapper> wrapper_ =
      std::make_shared<optim::Wrapper>(optim::Wrapper{"FullyShardedDataParallel"});
  comm::Group group_, shards_;
  const int gathered_;  ///< layers at a time; 0: until their backward
  std::vector<model::SkipNames> carried_;
  std::vector<Unit> units_;
  optim::NamedTensors shared_parameters_;
  std::vector<bool> shared_learn_;         ///< by shared parameter, when it was wrapped
  std::set<const at::TensorImpl*> known_;  ///< parameters of the layers' modules, when these were wrapped
  std::optional<DistributedDataParallel> shared_;  ///< parameters of several layers that learn
  std::optional<DistributedDataParallel::NoSync> shared_adds_up_;
  bool in_step_ = false;         ///< gradients that are kept, or reduced, since the last reduction ended
  int pass_ = -1;                ///< the graph task of the backward under way
  std::size_t current_ = kNone;  ///< the unit that computes gradients
};

/// Lies among the callbacks of a graph task: called where the task ends well, destroyed with it in any case.
class FullyShardedDataParallel::Passes::PassEnd {
 public:
  explicit PassEnd(std::weak_ptr<Passes> passes) : passes_(std::move(passes)) {}
  PassEnd(const PassEnd&) = delete;
  PassEnd& operator=(const PassEnd&) = delete;
  ~PassEnd() {
    if (const auto passes = passes_.lock()) passes->drop_pass();
  }
  void operator()() {
    if (const auto passes = passes_.lock()) passes->end_pass();
  }

 private:
  const std::weak_ptr<Passes> passes_;
};

FullyShardedDataParallel::Passes::Passes(comm::Group group, std::vector<model::Layer> layers,
                                         const FullyShardedOptions& options)
    : group_(std::move(group)),
      shards_(options.shard_groups ? options.shard_groups->shards : group_),
      gathered_(checked(options, layers).zero.gathered_stages),
      carried_(model::carried_skips(layers)) {
  const std::set<std::string> shared = shared_names(layers);
  const auto buckets =
      std::make_shared<BucketPool>(shards_, options.zero.keeps_gradients() ? BucketPool::kNoLimit : 2);
  for (model::Layer& layer : layers) add_unit(std::move(layer), options, buckets, shared);
  add_shared(options, shared);
  for (const Unit& unit : units_) {
    for (const auto& [name, parameter] : unit.layer.parameters)
      known_.insert(parameter.unsafeGetTensorImpl());
    for (const auto& module : unit.layer.modules)
      for (const at::Tensor& parameter : module->parameters()) known_.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& [name, parameter] : shared_parameters_) shared_learn_.push_back(parameter.requires_grad());
  for (const Unit& unit : units_) {
    for (const auto& item : unit.weights->parameters()) parameters.push_back(item);
    for (const auto& item : unit.weights->pieces()) pieces.insert(item);
  }
  for (const auto& [name, piece] : parameters) optim::mark_wrapped(piece, wrapper_);
  for (const Unit& unit : units_)
    for (const auto& [name, parameter] : unit.layer.parameters) optim::mark_wrapped(parameter, wrapper_);
  const bool learns =
      std::ranges::any_of(parameters, [](const auto& item) { return item.second.requires_grad(); });
  require(summed_over(group_, learns ? 1 : 0) > 0,
          "no parameter of the layers needs a gradient: there is nothing to train");
}

void FullyShardedDataParallel::Passes::add_unit(model::Layer layer, const FullyShardedOptions& options,
                                                const std::shared_ptr<BucketPool>& buckets,
                                                const std::set<std::string>& shared) {
  for (const auto& module : layer.modules) refuse_sparse_embeddings(*module, layer.name);
  Replica own{.parameters = {}, .buffers = layer.buffers};
  for (const auto& item : layer.parameters) {
    const auto has_name = [&](const auto& known) { return known.first == item.first; };
    const bool is_new = std::ranges::none_of(own.parameters, has_name);
    if (is_new && !shared.contains(item.first)) own.parameters.push_back(item);
  }
  for (const auto& item : layer.buffers) buffers.push_back(item);
  const std::optional<comm::Group> everybody = group_;
  const StageWeightsOptions held{
      .stage = static_cast<int>(units_.size()),
      .data = everybody,
      .shard_groups = options.shard_groups,
      .reduction = options.data_parallel,
      .zero = options.zero,
      .buckets = buckets,
      .rounded = options.zero.working_type ? rounded_parameters({layer}) : std::set<std::string>()};
  auto weights = std::make_unique<ShardedWeights>(std::move(own), held);
  units_.push_back({.layer = std::move(layer), .weights = std::move(weights)});
}

void FullyShardedDataParallel::Passes::add_shared(const FullyShardedOptions& options,
                                                  const std::set<std::string>& shared) {
  std::map<std::string, at::Tensor> tensors;
  for (const Unit& unit : units_) {
    for (const auto& [name, parameter] : unit.layer.parameters) {
      if (shared.contains(name) && tensors.emplace(name, parameter).second)
        shared_parameters_.emplace_back(name, parameter);
    }
  }
  parameters = shared_parameters_;
  if (group_.size() > 1) broadcast_tensors(group_, tensors_of(shared_parameters_), /*root=*/0);
  Replica whole{.parameters = shared_parameters_, .buffers = {}};
  std::erase_if(whole.parameters, [](const auto& item) { return !item.second.requires_grad(); });
  if (!whole.parameters.empty()) shared_.emplace(group_, std::move(whole), when_asked(options.data_parallel));
}

Fields FullyShardedDataParallel::Passes::forward(const Fields& input) {
  require(pass_ < 0,
          "forward() inside a backward pass: layers run again for their gradients by themselves "
          "(model::checkpointed), and forward() belongs before it");
  check_modules();
  Fields values = input;
  for (std::size_t number = 0; number < units_.size(); ++number) {
    for (std::size_t next = number; next < std::min(number + at_a_time(), units_.size()); ++next)
      units_[next].weights->unshard();
    values = compute(number, values);
  }
  return values;
}

/// What was loaded, converted, unfrozen or added since it was wrapped would never be trained.
void FullyShardedDataParallel::Passes::check_modules() const {
  for (const Unit& unit : units_) {
    unit.weights->check();
    for (const auto& module : unit.layer.modules) {
      for (const auto& item : module->named_parameters()) {
        require(known_.contains(item.value().unsafeGetTensorImpl()), "layer '", unit.layer.name,
                "' has a parameter '", item.key(),
                "' that it did not have when it was wrapped: no rank would ",
                "train it; add parameters first, then make the FullyShardedDataParallel and its optimizer");
      }
    }
  }
  for (std::size_t i = 0; i < shared_parameters_.size(); ++i) {
    const auto& [name, parameter] = shared_parameters_[i];
    require(parameter.requires_grad() == shared_learn_[i], "parameter '", name,
            "' has requires_grad = ", parameter.requires_grad(), " and had ",
            static_cast<bool>(shared_learn_[i]),
            " when it was wrapped: make the FullyShardedDataParallel and its optimizer anew");
  }
}

Fields FullyShardedDataParallel::Passes::compute(std::size_t number, const Fields& values) {
  Unit& unit = units_[number];
  unit.weights->show_newest();
  Fields outputs = model::run_layer(unit.layer, values, carried_[number], carried_[number + 1]);
  const auto use = std::make_shared<UnitUse>();
  for (const auto& [name, output] : outputs) {
    if (!at::GradMode::is_enabled() || !output.requires_grad() || is_passed_on(output, values)) continue;
    output.register_hook([passes = weak_from_this(), number, use](const at::Tensor& gradient) {
      const auto alive = passes.lock();
      require(alive != nullptr,
              "backward of a graph whose FullyShardedDataParallel is gone: it has the weights");
      use->is_over = true;
      alive->enter(number);
      return gradient;
    });
  }
  unit.uses.push_back(use);
  const bool has_graph = use.use_count() > 1;
  // Backward begins with the last unit.
  const bool stays = has_graph && (gathered_ == 0 || number + 1 == units_.size());
  if (!stays) unit.weights->reshard();
  return outputs;
}

/// Backward comes to a unit: gradients of what it made are complete.
void FullyShardedDataParallel::Passes::enter(std::size_t number) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (pass_ < 0) {
    begin_pass();
    pass_ = task;
    const auto end = std::make_shared<PassEnd>(weak_from_this());
    torch::autograd::Engine::get_default_engine().queue_callback([end] { (*end)(); });
  }
  require(task == pass_, "a backward pass inside another one, through layer '", units_[number].layer.name,
          "' of sharded weights: run one after the other");
  if (current_ == number) return;
  leave();
  Unit& unit = units_[number];
  for (std::size_t before = 0; before < std::min(at_a_time(), number + 1); ++before) {
    Unit& next = units_[number - before];
    if (before == 0 || next.is_expected()) next.weights->unshard();
  }
  unit.weights->show_newest();
  if (!unit.in_pass) {
    unit.weights->begin_backward(reduces ? ShardedWeights::Gradients::kReduced
                                         : ShardedWeights::Gradients::kKept);
  }
  unit.in_pass = true;
  current_ = number;
}

/// Autograd computes in the order of what forward did, backwards: behind the first gradient of what an
/// earlier unit made, all of this use are there.
void FullyShardedDataParallel::Passes::leave() {
  if (current_ == kNone) return;
  Unit& unit = units_[std::exchange(current_, kNone)];
  unit.weights->end_backward();
  if (reduces && !unit.is_expected()) reduce(unit);
  unit.weights->reshard();
}

void FullyShardedDataParallel::Passes::reduce(Unit& unit) {
  if (!std::exchange(unit.is_reduced, true)) unit.weights->reduce();
}

void FullyShardedDataParallel::Passes::begin_pass() {
  for (Unit& unit : units_) {
    unit.in_pass = false;
    unit.is_reduced = false;
    if (!in_step_) unit.weights->begin_step();
  }
  if (!in_step_ && shared_) {
    shared_adds_up_.reset();
    shared_adds_up_.emplace(*shared_);
  }
  in_step_ = true;
}

void FullyShardedDataParallel::Passes::end_pass() {
  leave();
  pass_ = -1;
  for (Unit& unit : units_) unit.weights->reshard();
  if (!reduces) return;
  for (std::size_t number = units_.size(); number-- > 0;) reduce(units_[number]);
  shared_adds_up_.reset();
  if (shared_) shared_->start_reduction();
  in_step_ = false;
  if (shared_) shared_->finish_reduction();
  for (Unit& unit : units_) unit.weights->finish();
  weights_changed();
}

/// Behind end_pass(), or without it: an exception has ended the pass.
void FullyShardedDataParallel::Passes::drop_pass() {
  if (pass_ < 0) return;
  pass_ = -1;
  in_step_ = false;
  if (current_ != kNone) units_[std::exchange(current_, kNone)].weights->end_backward();
  for (Unit& unit : units_) unit.weights->give_up("an exception ended a backward pass");
}

void FullyShardedDataParallel::Passes::zero_grad() {
  for (Unit& unit : units_) unit.weights->zero_grad();
  for (const auto& [name, parameter] : shared_parameters_) parameter.mutable_grad().reset();
  in_step_ = false;
}

double FullyShardedDataParallel::Passes::clip_grad_norm(double max_norm) {
  const at::NoGradGuard no_grad;
  double squares = 0;
  for (const auto& [name, parameter] : parameters) {
    const bool is_whole = !pieces.contains(name);
    if (!parameter.grad().defined() || (is_whole && shards_.rank() != 0)) continue;
    const double norm = optim::norms_of({parameter.grad()}).front().item<double>();
    squares += norm * norm;
  }
  const double norm = std::sqrt(summed_over(shards_, squares));
  optim::clip_to_norm(parameters, norm, max_norm);
  return norm;
}

double FullyShardedDataParallel::Passes::waited_s() const {
  double sum = shared_ ? shared_->statistics().waited_s : 0;
  for (const Unit& unit : units_) sum += unit.weights->waited_s();
  return sum;
}

FullyShardedDataParallel::FullyShardedDataParallel(comm::Context& context, std::vector<model::Layer> layers,
                                                   const FullyShardedOptions& options)
    : FullyShardedDataParallel(context.world(), std::move(layers), options) {}

FullyShardedDataParallel::FullyShardedDataParallel(comm::Group group, std::vector<model::Layer> layers,
                                                   const FullyShardedOptions& options)
    : passes_(std::make_shared<Passes>(std::move(group), std::move(layers), options)) {}

FullyShardedDataParallel::~FullyShardedDataParallel() = default;

FullyShardedDataParallel::NoSync::NoSync(FullyShardedDataParallel& sharded)
    : sharded_(sharded), before_(std::exchange(sharded.passes_->reduces, false)) {}

FullyShardedDataParallel::NoSync::~NoSync() { sharded_.passes_->reduces = before_; }

Fields FullyShardedDataParallel::forward(const Fields& input) { return passes_->forward(input); }
void FullyShardedDataParallel::zero_grad() { passes_->zero_grad(); }
double FullyShardedDataParallel::clip_grad_norm(double max_norm) { return passes_->clip_grad_norm(max_norm); }
const optim::NamedTensors& FullyShardedDataParallel::parameters() const { return passes_->parameters; }
const Pieces& FullyShardedDataParallel::pieces() const { return passes_->pieces; }
const optim::NamedTensors& FullyShardedDataParallel::buffers() const { return passes_->buffers; }
void FullyShardedDataParallel::weights_changed() { passes_->weights_changed(); }
double FullyShardedDataParallel::waited_s() const { return passes_->waited_s(); }

}  // namespace trireme::parallel
