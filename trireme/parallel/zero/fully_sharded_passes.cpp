// Follows autograd passes, and gathers, reduces and releases the layers' weights accordingly.
#include "trireme/parallel/zero/internal/fully_sharded_passes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/foreign_error.h"

namespace trireme::parallel {
namespace {

constexpr const char* kGone =
    "backward of a graph whose FullyShardedDataParallel is gone: it has the weights";

/// The layer returns an input unchanged.
bool is_passed_on(const at::Tensor& output, const Fields& inputs) {
  return std::ranges::any_of(inputs, [&](const batch::Field& input) {
    return input.tensor.is_same(output) && input.tensor.grad_fn() == output.grad_fn();
  });
}

}  // namespace

bool Unit::is_expected(int pass) {
  std::erase_if(uses, [](const auto& use) { return use.expired(); });
  return std::ranges::any_of(uses, [pass](const auto& each) {
    const auto use = each.lock();
    return use->pass != pass && std::ranges::any_of(use->nodes, is_run);
  });
}

/// A callback of a graph task: called if the task succeeds, destroyed with the task in any case.
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

FullyShardedDataParallel::Passes::~Passes() {
  for (const auto& [leaf, hook] : leaf_hooks_) leaf.remove_hook(hook);
}

void FullyShardedDataParallel::Passes::hook_leaves() {
  for (std::size_t number = 0; number < units_.size(); ++number) {
    for (const at::Tensor& leaf : units_[number].leaves) hook_leaf(leaf, number);
  }
  for (const auto& [name, parameter] : shared_parameters_) {
    if (parameter.requires_grad()) hook_leaf(parameter, kNone);
  }
}

void FullyShardedDataParallel::Passes::hook_leaf(const at::Tensor& leaf, std::size_t unit) {
  const auto on_it = [passes = weak_from_this(), unit, place = leaf_hooks_.size()](const at::Tensor&) {
    if (const auto alive = passes.lock()) alive->on_leaf(alive->leaf_hooks_[place].leaf, unit);
  };
  leaf_hooks_.push_back({.leaf = leaf, .hook = leaf.register_hook(on_it)});
}

Fields FullyShardedDataParallel::Passes::forward(const Fields& input) {
  require(!pass_,
          "forward() inside a backward pass: layers run again for their gradients by themselves "
          "(model::checkpointed), and forward() belongs before it");
  check_modules();
  Fields values = hook_inputs(input);
  for (std::size_t number = 0; number < units_.size(); ++number) {
    for (std::size_t next = number; next < std::min(number + at_a_time(), units_.size()); ++next)
      units_[next].weights->unshard();
    values = compute(number, values);
  }
  return values;
}

/// The gradients of the inputs are the last ones of a pass through the layers. The hooks are on aliases of
/// this forward: a user may use one input in many forwards.
Fields FullyShardedDataParallel::Passes::hook_inputs(const Fields& input) {
  if (!at::GradMode::is_enabled()) return input;
  return input.map([this](const at::Tensor& tensor) {
    if (!tensor.requires_grad()) return tensor;
    at::Tensor own = at::alias(tensor);
    own.register_hook([passes = weak_from_this()](const at::Tensor& gradient) {
      const auto alive = passes.lock();
      require(alive != nullptr, kGone);
      return alive->watched(gradient);
    });
    return own;
  });
}

Fields FullyShardedDataParallel::Passes::compute(std::size_t number, const Fields& values) {
  Unit& unit = units_[number];
  unit.weights->show_newest();
  // The layer may compute gradients itself, through earlier layers. Such a pass releases the weights that it
  // gathers, so they are kept here.
  const std::shared_ptr<void> in_use = unit.weights->keep();
  Fields outputs = as_error_of(
      [&] { return text("layer '", unit.layer.name, "'"); },
      [&] { return model::run_layer(unit.layer, values, carried_[number], carried_[number + 1]); });
  const auto use = std::make_shared<UnitUse>();
  for (const auto& [name, output] : outputs) {
    if (!at::GradMode::is_enabled() || !output.requires_grad() || is_passed_on(output, values)) continue;
    hook_output(output, number, use);
  }
  unit.uses.push_back(use);
  const bool has_graph = use.use_count() > 1;
  // Backward begins with the last unit.
  const bool stays = has_graph && (gathered_ == 0 || number + 1 == units_.size());
  if (!stays) unit.weights->reshard();
  return outputs;
}

void FullyShardedDataParallel::Passes::hook_output(const at::Tensor& output, std::size_t number,
                                                   const std::shared_ptr<UnitUse>& use) {
  const torch::autograd::Node* const node = node_of(output);
  use->nodes.push_back(node);
  output.register_hook([passes = weak_from_this(), number, use, node](const at::Tensor& gradient) {
    const auto alive = passes.lock();
    require(alive != nullptr, kGone);
    return alive->on_output(number, *use, node, gradient);
  });
}

/// Backward reaches a unit: the gradients of its outputs are complete.
at::Tensor FullyShardedDataParallel::Passes::on_output(std::size_t number, UnitUse& use,
                                                       const torch::autograd::Node* node,
                                                       const at::Tensor& gradient) {
  if (ends_at(node)) return watched(gradient);
  begin_pass();
  require(is_in_pass(), "a backward pass inside another one, through layer '", units_[number].layer.name,
          "' of sharded weights: run one after the other");
  use.pass = pass_->task;
  enter(number);
  return watched(gradient);
}

/// A pass through the graph of another pass. It may come here before the hooks of layers see their gradients.
at::Tensor FullyShardedDataParallel::Passes::on_graph(const std::shared_ptr<GraphWeights>& graph,
                                                      const at::Tensor& gradient) {
  begin_pass();
  if (!is_in_pass()) return gradient;
  pass_->comes_from_graph = true;
  if (pass_->graph) pass_->graph->before.push_back(graph);
  if (!keeps_graph()) pass_->used_up.push_back(graph);
  return watched(gradient);
}

/// Called before a gradient is accumulated into the leaf, or returned.
void FullyShardedDataParallel::Passes::on_leaf(const at::Tensor& leaf, std::size_t unit) {
  if (!accumulates_into(leaf)) return;
  begin_pass();
  if (unit == kNone) return;
  require(units_[unit].in_pass || pass_->comes_from_graph, "layer '", units_[unit].layer.name,
          "': a gradient of its parameters comes from outside of forward() of the FullyShardedDataParallel, ",
          "for example from forward() of the module itself, which computes with weights of any step: ",
          "call forward() of the FullyShardedDataParallel");
  if (is_in_pass()) --units_[unit].num_left;
}

bool FullyShardedDataParallel::Passes::is_in_pass() const {
  return pass_ && pass_->task == torch::autograd::get_current_graph_task_id();
}

/// If the pass creates a graph, an alias replaces the gradient. It is part of that graph, so the objects in
/// its hook live as long.
at::Tensor FullyShardedDataParallel::Passes::watched(const at::Tensor& gradient) {
  if (!is_in_pass() || !pass_->graph || !gradient.requires_grad()) return gradient;
  at::Tensor own = at::alias(gradient);
  own.register_hook([passes = weak_from_this(), graph = pass_->graph](const at::Tensor& next) {
    const auto alive = passes.lock();
    require(alive != nullptr, kGone);
    return alive->on_graph(graph, next);
  });
  pass_->graph->is_held = true;
  return own;
}

/// Does nothing during a pass.
void FullyShardedDataParallel::Passes::begin_pass() {
  if (pass_) return;
  const auto is_added_to = [](const LeafHook& each) { return accumulates_into(each.leaf); };
  pass_ = Pass{.task = torch::autograd::get_current_graph_task_id(),
               .accumulates = accumulates_into_all() || std::ranges::any_of(leaf_hooks_, is_added_to),
               .graph = makes_graph() ? std::make_shared<GraphWeights>() : nullptr};
  const auto end = std::make_shared<PassEnd>(weak_from_this());
  torch::autograd::Engine::get_default_engine().queue_callback([end] { (*end)(); });
  for (Unit& unit : units_) unit.in_pass = false;
  if (pass_->accumulates) begin_reduction();
}

void FullyShardedDataParallel::Passes::begin_reduction() {
  for (Unit& unit : units_) {
    unit.is_reduced = false;
    unit.num_left = static_cast<int>(std::ranges::count_if(unit.leaves, accumulates_into));
    if (!in_step_) unit.weights->begin_step();
  }
  if (!in_step_ && shared_) {
    shared_adds_up_.reset();
    shared_adds_up_.emplace(*shared_);
  }
  in_step_ = true;
}

void FullyShardedDataParallel::Passes::enter(std::size_t number) {
  if (current_ == number) return;
  leave();
  Unit& unit = units_[number];
  for (std::size_t before = 0; before < std::min(at_a_time(), number + 1); ++before) {
    Unit& next = units_[number - before];
    if (before == 0 || next.is_expected(pass_->task)) next.weights->unshard();
  }
  unit.weights->show_newest();
  if (!std::exchange(unit.in_pass, true)) {
    if (pass_->graph) pass_->graph->kept.push_back(unit.weights->keep());
    if (pass_->accumulates) {
      unit.weights->begin_backward(reduces ? ShardedWeights::Gradients::kReduced
                                           : ShardedWeights::Gradients::kKept);
    }
  }
  current_ = number;
}

/// Autograd runs in the reverse order of forward. So the first gradient for an earlier unit's output shows
/// that all gradients of this use have arrived.
void FullyShardedDataParallel::Passes::leave() {
  if (current_ == kNone) return;
  Unit& unit = units_[std::exchange(current_, kNone)];
  if (pass_->accumulates) {
    unit.weights->end_backward();
    if (reduces && unit.num_left == 0 && !unit.is_expected(pass_->task)) reduce(unit);
  }
  unit.weights->reshard();
}

void FullyShardedDataParallel::Passes::reduce(Unit& unit) {
  if (!std::exchange(unit.is_reduced, true)) unit.weights->reduce();
}

void FullyShardedDataParallel::Passes::end_pass() {
  leave();
  const Pass pass = *std::exchange(pass_, std::nullopt);
  for (Unit& unit : units_) unit.weights->reshard();
  for (const auto& graph : pass.used_up) graph->drop();
  if (pass.accumulates) without_hook_.clear();
  if (pass.graph && !pass.graph->is_held) without_hook_.push_back(pass.graph);
  if (pass.accumulates && reduces) end_reduction();
}

void FullyShardedDataParallel::Passes::end_reduction() {
  for (std::size_t number = units_.size(); number-- > 0;) reduce(units_[number]);
  shared_adds_up_.reset();
  if (shared_) shared_->start_reduction();
  in_step_ = false;
  if (shared_) shared_->finish_reduction();
  for (Unit& unit : units_) unit.weights->finish();
  watch_.reduced(parameters);
  weights_changed();
}

/// Called after end_pass(), or without it if an exception has ended the pass.
void FullyShardedDataParallel::Passes::drop_pass() {
  if (!pass_) return;
  const bool accumulates = std::exchange(pass_, std::nullopt)->accumulates;
  const std::size_t last = std::exchange(current_, kNone);
  if (!accumulates) return;
  in_step_ = false;
  if (last != kNone) units_[last].weights->end_backward();
  for (Unit& unit : units_) unit.weights->give_up("an exception ended a backward pass");
}

}  // namespace trireme::parallel
