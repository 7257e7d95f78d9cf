#pragma once
// A backward in two parts, for the schedules that put the second where a rank would wait (zero bubble, arXiv
// 2401.10241): first the gradients of a graph's inputs, later those of its weights. Both together ask
// every operator for the gradients that torch::autograd::backward asks it for, and give the same bits.
//
// The graph is cut where a path to weights leaves the paths to the inputs: at a product, a convolution, the
// addition of an embedding. libtorch's operators compute only those gradients that a run of the engine
// requests. The first part requests the paths to the inputs and keeps the gradients at each cut. Memory that
// the second part does not need is freed on the way. The second continues from all cuts in one run, without
// the paths to the inputs.
//
// Some operators always compute the gradients of their weights with that of their input: custom functions
// (torch::autograd::Function; they may have effects, so they run once), cuDNN's batch norm, PReLU. The first
// part then keeps the results for the second to pass on; unsplit() names them. Hooks on tensors and nodes are
// called once. The exception is hooks on parameters of such operators: their first call has no effect. Not
// thread-safe.

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <set>
#include <string>
#include <vector>

namespace trireme::parallel {

/// The second part: the graph's cuts and the gradients at each cut.
class WeightBackward {
 public:
  /// Adds to the gradients of the weights in one run of the engine, and gives the graph back. Once.
  void run();

  /// To be continued from `edge` on. An undefined gradient is none.
  void add(const torch::autograd::Edge& edge, const at::Tensor& gradient);
  void add_unsplit(const std::string& name) { unsplit_.insert(name); }

  /// Operators whose weights' gradients the first part computed.
  const std::set<std::string>& unsplit() const { return unsplit_; }

 private:
  torch::autograd::edge_list edges_;
  std::vector<at::Tensor> gradients_;
  std::set<std::string> unsplit_;
};

struct InputBackward {
  std::vector<at::Tensor> gradients;  ///< of each input; undefined where no output depends on it
  WeightBackward weights;
};

/// The first part. `inputs` are gradient edges of leaves or of tensors inside the graph. The graph beyond
/// those is left to the second part. Gradients of other leaves are not touched. Afterwards only the second
/// part can use the graph. Cost beyond the operators: a traversal of the graph.
InputBackward backward_of_inputs(const std::vector<at::Tensor>& outputs,
                                 const std::vector<at::Tensor>& output_gradients,
                                 const torch::autograd::edge_list& inputs);

}  // namespace trireme::parallel
