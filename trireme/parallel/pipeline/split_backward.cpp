#include "trireme/parallel/pipeline/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <array>
#include <deque>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace trireme::parallel {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

using NodePtr = decltype(Edge::function);

constexpr std::string_view kOwnFunction = "torch::autograd::CppNode<";

/// Parts of type names: custom functions, and operators of derivatives.yaml with one formula for the
/// gradients of input and weights, without a mask of the requested ones.
constexpr std::array<std::string_view, 9> kIndivisible = {"CppNode",
                                                          "Attention",  // with learned queries
                                                          "CudnnBatchNormBackward",
                                                          "GraphedBackward",  // graphed_layer.h
                                                          "MiopenBatchNormBackward",
                                                          "MkldnnRnnLayerBackward",
                                                          "PreluKernelBackward",
                                                          "ThnnFusedGruCellBackward",
                                                          "ThnnFusedLstmCellBackward"};

/// The leaves that can be reached from a node.
struct Reach {
  bool inputs = false;
  bool weights = false;  ///< leaves that are not inputs
};

/// The nodes below `outputs`, children before parents, and the leaves that each of them reaches.
class Graph {
 public:
  Graph(const edge_list& outputs, const edge_list& inputs) {
    for (const Edge& input : inputs) ends_.insert(input.function.get());
    for (const Edge& output : outputs) walk(output.function);
  }

  const std::vector<NodePtr>& nodes() const { return nodes_; }
  bool has(const Edge& edge) const { return reach_.contains(edge.function.get()); }
  bool leads_to_inputs(const Edge& edge) const {
    return edge.is_valid() && reach_.at(edge.function.get()).inputs;
  }
  bool leads_to_weights(const Edge& edge) const {
    return edge.is_valid() && reach_.at(edge.function.get()).weights;
  }

 private:
  struct Frame {
    NodePtr node;
    std::size_t next = 0;  ///< the next edge to follow
  };

  void walk(const NodePtr& root) {
    std::vector<Frame> path;
    if (root && reach_.try_emplace(root.get()).second) path.push_back({root});
    while (!path.empty()) {
      Frame& frame = path.back();
      if (frame.next < frame.node->num_outputs()) {
        const NodePtr& child = frame.node->next_edge(frame.next++).function;
        if (child && reach_.try_emplace(child.get()).second) path.push_back({child});
        continue;
      }
      conclude(*frame.node);
      nodes_.push_back(std::move(frame.node));
      path.pop_back();
    }
  }

  void conclude(Node& node) {
    Reach all;
    bool is_leaf = true;
    for (const Edge& edge : node.next_edges()) {
      if (!edge.is_valid()) continue;
      is_leaf = false;
      const Reach& below = reach_.at(edge.function.get());
      all.inputs = all.inputs || below.inputs;
      all.weights = all.weights || below.weights;
    }
    const bool is_end = ends_.contains(&node);
    reach_[&node] = {.inputs = all.inputs || is_end, .weights = all.weights || (is_leaf && !is_end)};
  }

  std::unordered_set<Node*> ends_;
  std::unordered_map<Node*, Reach> reach_;
  std::vector<NodePtr> nodes_;
};

/// Computes the gradients of its weights together with that of its input, even if they are not requested.
bool is_indivisible(const Node& node) {
  // The raw type name: the demangled one takes microseconds.
  const std::string_view name = typeid(node).name();
  return std::any_of(kIndivisible.begin(), kIndivisible.end(),
                     [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

std::string name_of(const Node& node) {
  const std::string name = node.name();
  return name.starts_with(kOwnFunction)
             ? name.substr(kOwnFunction.size(), name.size() - kOwnFunction.size() - 1)
             : name;
}

/// A node on a path to the inputs, with other edges that lead only to weights.
struct Cut {
  NodePtr node;
  std::vector<std::size_t> to_weights = {};  ///< indices of edges
  bool is_whole = false;                     ///< indivisible: the first part computes all of it
  variable_list arrived = {};                ///< gradients that arrived at the node
  variable_list computed = {};  ///< gradients of `to_weights`, if the first part has computed them
};

/// Records the inputs and outputs of a node in the first part. Null `cut`: the second part does not need the
/// node.
class Tap : public torch::autograd::FunctionPostHook {
 public:
  Tap(Node& node, Cut* cut) : node_(node), cut_(cut) {}

  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (cut_ == nullptr) {
      node_.release_variables();
      return outputs;
    }
    cut_->arrived = inputs;
    for (const std::size_t edge : cut_->to_weights) cut_->computed.push_back(outputs[edge]);
    return outputs;
  }

 private:
  Node& node_;
  Cut* cut_;
};

/// Taps on the nodes that the first part runs; removed by the destructor.
class Taps {
 public:
  explicit Taps(const Graph& graph) {
    for (const NodePtr& node : graph.nodes()) tap(graph, node);
  }
  ~Taps() {
    for (const auto& [node, key] : keys_) node->del_post_hook(key);
  }
  Taps(const Taps&) = delete;
  Taps& operator=(const Taps&) = delete;

  const std::deque<Cut>& cuts() const { return cuts_; }
  std::deque<Cut> take_cuts() { return std::move(cuts_); }

 private:
  void tap(const Graph& graph, const NodePtr& node) {
    const edge_list& edges = node->next_edges();
    const bool runs = std::any_of(edges.begin(), edges.end(),
                                  [&](const Edge& edge) { return graph.leads_to_inputs(edge); });
    if (!runs) return;
    Cut cut{.node = node};
    for (std::size_t i = 0; i < edges.size(); ++i) {
      if (graph.leads_to_weights(edges[i]) && !graph.leads_to_inputs(edges[i])) cut.to_weights.push_back(i);
    }
    Cut* kept = nullptr;
    if (!cut.to_weights.empty()) {
      cut.is_whole = is_indivisible(*node);
      kept = &cuts_.emplace_back(std::move(cut));
    }
    keys_.emplace_back(node, node->add_post_hook(std::make_unique<Tap>(*node, kept)));
  }

  std::deque<Cut> cuts_;  // a deque, because taps have pointers to its elements
  std::vector<std::pair<NodePtr, std::uintptr_t>> keys_;
};

/// Hooks on the node's output tensors have been called: its second run must not call them again.
void forget_tensor_hooks(Node& node) {
  node.tensor_pre_hooks().clear();
  node.retains_grad_hooks().clear();
}

/// Removes the edges to the inputs from a cut, and leaves the other edges to the second part.
void leave(Cut& cut, WeightBackward& weights) {
  edge_list& edges = cut.node->next_edges();
  edge_list rest(edges.size());
  bool has_rest = false;
  for (std::size_t k = 0; k < cut.computed.size(); ++k) {
    Edge& edge = edges[cut.to_weights[k]];
    if (cut.is_whole || cut.computed[k].defined()) {
      weights.add(edge, cut.computed[k]);
      weights.add_unsplit(name_of(*cut.node));
    } else {
      rest[cut.to_weights[k]] = edge;
      has_rest = true;
    }
  }
  edges = std::move(rest);
  forget_tensor_hooks(*cut.node);
  cut.node->pre_hooks().clear();
  if (!has_rest) return;
  for (std::size_t i = 0; i < cut.arrived.size(); ++i)
    weights.add({cut.node, static_cast<std::uint32_t>(i)}, cut.arrived[i]);
}

/// All inputs of the nodes of `ends` in the graph, without duplicates.
edge_list inputs_of(const edge_list& ends, const Graph& graph) {
  edge_list all;
  for (const Edge& end : ends) {
    const bool known = std::any_of(all.begin(), all.end(),
                                   [&](const Edge& other) { return other.function == end.function; });
    if (known || !graph.has(end)) continue;
    for (std::uint32_t i = 0; i < end.function->num_inputs(); ++i) all.emplace_back(end.function, i);
  }
  return all;
}

/// The gradients requested from the engine: those of the inputs, and all of indivisible operators.
edge_list asked_for(edge_list inputs, const std::deque<Cut>& cuts) {
  for (const Cut& cut : cuts) {
    if (!cut.is_whole) continue;
    for (const std::size_t edge : cut.to_weights) inputs.push_back(cut.node->next_edge(edge));
  }
  return inputs;
}

/// The graph below a non-leaf input is left to the second part.
void leave_behind(const Edge& input, const at::Tensor& gradient, const Graph& graph,
                  WeightBackward& weights) {
  const bool was_run = std::any_of(input.function->next_edges().begin(), input.function->next_edges().end(),
                                   [&](const Edge& edge) { return graph.leads_to_inputs(edge); });
  if (was_run || !graph.leads_to_weights(input)) return;
  weights.add(input, gradient);
  forget_tensor_hooks(*input.function);
}

edge_list edges_of(const std::vector<at::Tensor>& outputs) {
  edge_list edges;
  for (const at::Tensor& output : outputs)
    edges.push_back(output.requires_grad() ? torch::autograd::impl::gradient_edge(output) : Edge());
  return edges;
}

}  // namespace

void WeightBackward::add(const Edge& edge, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  edges_.push_back(edge);
  gradients_.push_back(gradient);
}

void WeightBackward::run() {
  const edge_list edges = std::exchange(edges_, {});
  const variable_list gradients = std::exchange(gradients_, {});
  if (edges.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(edges, gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

InputBackward backward_of_inputs(const std::vector<at::Tensor>& outputs,
                                 const std::vector<at::Tensor>& output_gradients, const edge_list& inputs) {
  InputBackward result{.gradients = std::vector<at::Tensor>(inputs.size()), .weights = {}};
  const edge_list from = edges_of(outputs);
  const Graph graph(from, inputs);
  edge_list roots;
  variable_list arriving;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (graph.leads_to_inputs(from[i])) {
      roots.push_back(from[i]);
      arriving.push_back(output_gradients[i]);
    } else if (from[i].is_valid()) {
      result.weights.add(from[i], output_gradients[i]);
    }
  }
  if (roots.empty()) return result;
  const edge_list ends = inputs_of(inputs, graph);
  std::deque<Cut> cuts;
  variable_list given;
  {
    Taps taps(graph);
    given = torch::autograd::Engine::get_default_engine().execute(
        roots, arriving, /*keep_graph=*/true, /*create_graph=*/false,
        /*accumulate_grad=*/false, asked_for(ends, taps.cuts()));
    cuts = taps.take_cuts();
  }
  // In the order of a normal backward: gradients that meet at one node are then summed in the same order.
  std::sort(cuts.begin(), cuts.end(),
            [](const Cut& a, const Cut& b) { return a.node->sequence_nr() > b.node->sequence_nr(); });
  for (std::size_t i = 0; i < ends.size(); ++i) {
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k] == ends[i]) result.gradients[k] = given[i];
    }
    leave_behind(ends[i], given[i], graph, result.weights);
  }
  for (Cut& cut : cuts) leave(cut, result.weights);
  return result;
}

}  // namespace trireme::parallel
