#include "trireme/parallel/graphed_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/module.h>

#include <set>
#include <type_traits>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/parallel/internal/graph_capture.h"
#include "trireme/parallel/internal/layer_inputs.h"

namespace trireme::parallel {
namespace {

using model::Tensors;
using torch::autograd::variable_list;

constexpr int kMostMoves = 8;
/// Limit of input sizes, because the graphs of each keep activations.
constexpr std::size_t kMostSizes = 16;

/// Graphs of one forward and its backward, and the memory that they read and write.
struct GraphedPass {
  Fields inputs, outputs;
  Tensors roots, learners;                   ///< tensors with a gradient: outputs; inputs and parameters
  Tensors output_gradients, gradients;       ///< of `roots`, and of `learners`; undefined: none
  std::vector<std::size_t> learning_inputs;  ///< indices in `inputs`; these inputs come first in `learners`
  std::unique_ptr<comm::DeviceGraph> forward, backward;
  bool is_busy = false;  ///< from a forward to the end of its backward
};

/// The backward of one replayed forward.
class GraphedBackward final : public torch::autograd::Node {
 public:
  explicit GraphedBackward(std::shared_ptr<GraphedPass> pass) : pass_(std::move(pass)) {
    pass_->is_busy = true;
  }
  ~GraphedBackward() override { GraphedBackward::release_variables(); }
  GraphedBackward(const GraphedBackward&) = delete;
  GraphedBackward& operator=(const GraphedBackward&) = delete;

  variable_list apply(variable_list&& arrived) override {
    require(
        !at::GradMode::is_enabled(),
        "the backward of a captured layer has no gradients of its own (create_graph); leave its graph out");
    if (!pass_) throw InvalidArgument("the backward of a captured layer runs twice: give retain_graph");
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < arrived.size(); ++i) {
      at::Tensor& place = pass_->output_gradients[i];
      arrived[i].defined() ? place.copy_(arrived[i]) : place.zero_();
    }
    pass_->backward->replay();
    variable_list gradients;
    for (const at::Tensor& gradient : pass_->gradients)
      gradients.push_back(gradient.defined() ? gradient.clone() : at::Tensor());
    return gradients;
  }
  void release_variables() override {
    if (pass_) pass_->is_busy = false;
    pass_.reset();
  }

 private:
  std::shared_ptr<GraphedPass> pass_;
};

/// A shared or an intrusive pointer, depending on the version of libtorch.
template <class Backward, class NodePointer = decltype(torch::autograd::Edge::function)>
NodePointer make_backward(std::shared_ptr<GraphedPass> pass) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Backward>(std::move(pass));
  else
    return c10::make_intrusive<Backward>(std::move(pass));
}

/// Whether the backward of `roots` would reach a leaf that is not in `learners`.
bool reaches_others(const Tensors& roots, const Tensors& learners) {
  std::set<const at::TensorImpl*> known;
  for (const at::Tensor& learner : learners) known.insert(learner.unsafeGetTensorImpl());
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> left;
  const auto visit = [&](const torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) left.push_back(node);
  };
  for (const at::Tensor& root : roots) visit(torch::autograd::impl::gradient_edge(root).function.get());
  while (!left.empty()) {
    const torch::autograd::Node* node = left.back();
    left.pop_back();
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      if (!known.contains(leaf->variable.unsafeGetTensorImpl())) return true;
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  return false;
}

class GraphedLayer {
 public:
  GraphedLayer(model::Layer plain, c10::Device device, const GraphOptions& options,
               std::shared_ptr<GraphCounts> counts)
      : plain_(std::move(plain)), device_(device), options_(options), counts_(std::move(counts)) {}

  Fields run(const Fields& inputs) {
    if (!at::GradMode::is_enabled() || GraphedStep::is_capturing() || options_.use == GraphUse::kOff)
      return plain_.forward(inputs);
    if (why_not_.empty()) why_not_ = obstacle();
    Shape* shape = why_not_.empty() ? shape_for(inputs) : nullptr;
    if (shape != nullptr && shape->num_warm >= options_.warm_up) {
      if (const std::shared_ptr<GraphedPass> pass = free_pass(*shape, inputs)) return replay(pass, inputs);
    }
    std::string reason = why_not_;
    if (reason.empty() && shape == nullptr)
      reason = text("it gets inputs of more than ", kMostSizes, " sizes, each of which needs its own graphs");
    if (reason.empty()) {
      ++shape->num_warm;
    } else {
      require(options_.use != GraphUse::kOn, "layer '", plain_.name,
              "' cannot be captured in a graph: ", reason);
      counts_->why_not = text("layer '", plain_.name, "': ", reason);
    }
    return plain_.forward(inputs);
  }

 private:
  /// The properties that a captured forward depends on, other than the weights.
  struct Shape {
    Fields like;  ///< without values
    std::vector<bool> flags;
    int num_warm = 0;
    std::vector<std::shared_ptr<GraphedPass>> passes;
  };

  std::string obstacle() const {
    if (std::string reason = comm::graphs_unavailable_because(device_); !reason.empty()) return reason;
    const c10::impl::VirtualGuardImpl device(device_.type());
    if (device.getStream(device_) == device.getDefaultStream(device_))
      return "it computes on the default stream, which cannot be captured";
    return "";
  }

  /// The gradients that are requested, and the modules that are in training mode.
  std::vector<bool> flags_for(const Fields& inputs) const {
    std::vector<bool> flags;
    for (const batch::Field& input : inputs) flags.push_back(input.tensor.requires_grad());
    for (const auto& [name, parameter] : plain_.parameters) flags.push_back(parameter.requires_grad());
    for (const auto& module : plain_.modules) {
      for (const auto& part : module->modules()) flags.push_back(part->is_training());
    }
    return flags;
  }

  /// Null if there are too many sizes.
  Shape* shape_for(const Fields& inputs) {
    forget_moved_weights();
    std::vector<bool> flags = flags_for(inputs);
    for (const auto& shape : shapes_) {
      if (are_alike(shape->like, inputs) && shape->flags == flags) return shape.get();
    }
    if (shapes_.size() == kMostSizes) return nullptr;
    shapes_.push_back(std::make_unique<Shape>(
        Shape{.like = inputs.map([](const at::Tensor& tensor) { return tensor.detach().to(at::kMeta); }),
              .flags = std::move(flags),
              .num_warm = 0,
              .passes = {}}));
    return shapes_.back().get();
  }

  /// A graph reads weights at their addresses during the capture.
  void forget_moved_weights() {
    std::vector<const void*> addresses;
    for (const auto* tensors : {&plain_.parameters, &plain_.buffers}) {
      for (const auto& [name, tensor] : *tensors) addresses.push_back(tensor.const_data_ptr());
    }
    if (addresses == addresses_) return;
    const bool is_first = addresses_.empty();
    addresses_ = std::move(addresses);
    if (is_first) return;
    for (const auto& shape : shapes_) shape->passes.clear();
    if (++num_moves_ > kMostMoves) why_not_ = "its weights change their addresses from step to step";
  }

  std::shared_ptr<GraphedPass> free_pass(Shape& shape, const Fields& inputs) {
    for (const auto& pass : shape.passes) {
      if (!pass->is_busy) return pass;
    }
    std::shared_ptr<GraphedPass> pass = captured(inputs);
    if (pass) shape.passes.push_back(pass);
    return pass;
  }

  /// Null if the layer cannot be captured. A capture executes nothing.
  std::shared_ptr<GraphedPass> captured(const Fields& inputs) {
    auto pass = std::make_shared<GraphedPass>();
    pass->forward = comm::make_device_graph(device_);
    pass->backward = comm::make_device_graph(device_);
    pass->inputs = inputs.map([](const at::Tensor& tensor) {
      const at::NoGradGuard no_grad;
      return at::empty_like(tensor.detach()).requires_grad_(tensor.requires_grad());
    });
    try {
      capture_forward(*pass);
      if (why_not_.empty() && !pass->roots.empty()) capture_backward(*pass);
    } catch (const c10::Error& error) {
      why_not_ = error.what_without_backtrace();
    }
    if (!why_not_.empty()) return nullptr;
    ++counts_->num_graphs;
    return pass;
  }

  void capture_forward(GraphedPass& pass) {
    const std::vector<std::int64_t> before = versions_of(pass.inputs);
    Capture capture(*pass.forward);
    pass.outputs = plain_.forward(pass.inputs.map(entered));
    capture.end();
    // Other code may have the input, and a replay would not show it the change.
    if (versions_of(pass.inputs) != before) why_not_ = "it changes its input in place";
    for (const batch::Field& output : pass.outputs) {
      if (!output.tensor.defined() || output.tensor.device() != device_)
        why_not_ = "it returns a tensor that is not on its device";
      else if (output.tensor.requires_grad())
        pass.roots.push_back(output.tensor);
    }
  }

  /// The autograd graph is kept: it holds the tensors that the backward reads.
  void capture_backward(GraphedPass& pass) {
    for (std::size_t i = 0; i < pass.inputs.size(); ++i) {
      if (!pass.inputs.at(i).requires_grad()) continue;
      pass.learning_inputs.push_back(i);
      pass.learners.push_back(pass.inputs.at(i));
    }
    for (const auto& [name, parameter] : plain_.parameters) {
      if (parameter.requires_grad()) pass.learners.push_back(parameter);
    }
    if (reaches_others(pass.roots, pass.learners)) {
      why_not_ = "it computes with a parameter that it does not list";
      return;
    }
    for (const at::Tensor& root : pass.roots) pass.output_gradients.push_back(at::empty_like(root.detach()));
    Capture capture(*pass.backward);
    pass.gradients = torch::autograd::grad(pass.roots, pass.learners, pass.output_gradients,
                                           /*retain_graph=*/true, /*create_graph=*/false,
                                           /*allow_unused=*/true);
    capture.end();
    leave_out_unused(pass);
  }

  /// Removes parameters without a gradient, so that autograd reaches the same ones as after a plain forward.
  static void leave_out_unused(GraphedPass& pass) {
    const std::size_t num_inputs = pass.learning_inputs.size();
    Tensors learners, gradients;
    for (std::size_t i = 0; i < pass.learners.size(); ++i) {
      if (i >= num_inputs && !pass.gradients[i].defined()) continue;
      learners.push_back(pass.learners[i]);
      gradients.push_back(pass.gradients[i]);
    }
    pass.learners = std::move(learners);
    pass.gradients = std::move(gradients);
  }

  Fields replay(const std::shared_ptr<GraphedPass>& pass, const Fields& inputs) {
    variable_list learners = pass->learners;
    {
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < inputs.size(); ++i) at::Tensor(pass->inputs.at(i)).copy_(inputs.at(i));
    }
    pass->forward->replay();
    ++counts_->num_replays;
    // The next layer may keep the outputs after this pass, or change them in place.
    Fields outputs = pass->outputs.map([](const at::Tensor& output) {
      const at::NoGradGuard no_grad;
      return output.detach().clone();
    });
    if (pass->roots.empty()) return outputs;
    for (std::size_t i = 0; i < pass->learning_inputs.size(); ++i)
      learners[i] = inputs.at(pass->learning_inputs[i]);
    const auto node = make_backward<GraphedBackward>(pass);
    node->set_next_edges(torch::autograd::collect_next_edges(learners));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      at::Tensor output = outputs.at(i);
      if (pass->outputs.at(i).requires_grad()) torch::autograd::set_history(output, node);
    }
    return outputs;
  }

  const model::Layer plain_;
  const c10::Device device_;
  const GraphOptions options_;
  const std::shared_ptr<GraphCounts> counts_;
  std::vector<std::unique_ptr<Shape>> shapes_;
  std::vector<const void*> addresses_;  ///< of weights and buffers
  int num_moves_ = 0;
  std::string why_not_;
};

}  // namespace

model::Layer graphed(model::Layer layer, c10::Device device, const GraphOptions& options,
                     std::shared_ptr<GraphCounts> counts) {
  require(options.warm_up >= 1, "a layer is captured after at least 1 forward that runs as it is, not after ",
          options.warm_up);
  auto captured = std::make_shared<GraphedLayer>(layer, device, options, std::move(counts));
  layer.forward = [captured = std::move(captured)](const Fields& inputs) { return captured->run(inputs); };
  return layer;
}

}  // namespace trireme::parallel
