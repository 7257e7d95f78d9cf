#pragma once
// A backward in two parts, for the schedules that put the second where a rank would wait (zero bubble, arXiv
// 2401.10241): first the gradients of a graph's inputs, later those of its weights. Both together ask
// every operator for the gradients that torch::autograd::backward asks it for, and give the same bits.
//
// The graph is cut where a way to weights leaves the ways to the inputs: at a product, a convolution, the
// addition of an embedding. libtorch's operators compute only those gradients that a run of the engine asks
// for. The first part asks for the ways to the inputs and keeps what arrives at each cut; what the second
// does not need is given back on the way. The second continues from all cuts in one run, with the ways to the
// inputs taken off.
//
// Some operators compute the gradients of their weights with that of their input, asked or not: functions of
// one's own (torch::autograd::Function; they may have effects, so they run once), cuDNN's batch norm, PReLU.
// The first part then keeps the results for the second to pass on; unsplit() names them. Hooks on tensors and
// nodes are called once, but for those on parameters of such operators: their first call is for nothing. Not
// thread-safe.

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <set>
#include <string>
#include <vector>

namespace trireme::parallel {

/// The second part: the graph's cuts and what arrived there.
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

/// The first part. `inputs` are gradient edges of leaves or of tensors inside the graph; what lies behind
/// those is left to the second part. Gradients of other leaves are not touched, and the graph can be used for
/// nothing but the second part afterwards. Cost beyond the operators: a walk over the graph.
InputBackward backward_of_inputs(const std::vector<at::Tensor>& outputs,
                                 const std::vector<at::Tensor>& output_gradients,
                                 const torch::autograd::edge_list& inputs);

}  // namespace trireme::parallel
