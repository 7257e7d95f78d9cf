#pragma once
// The computations of one stage: forward and backward of micro-batches, several of which may be in flight. A
// stage maps fields to fields: the tensors between layers, with skips that only pass through (model/skips.h).
// It does not depend on other stages. One thread.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "trireme/base/foreign_error.h"
#include "trireme/model/forward_record.h"
#include "trireme/model/layer.h"
#include "trireme/model/skips.h"
#include "trireme/parallel/pipeline/split_backward.h"

namespace trireme::parallel {

struct StageOptions {
  bool recompute = false;            ///< only inputs are kept; the forward runs again for the backward
  bool wants_input_gradient = true;  ///< some stage before it learns from the gradient
};

class Stage {
 public:
  /// Turns the outputs of the last layer into the loss of the micro-batch, on the last stage.
  using Head = std::function<at::Tensor(const Fields& outputs, int microbatch)>;

  /// `carried`: skips that travel to each layer, and after the last. Empty: none.
  Stage(std::vector<model::Layer> layers, const StageOptions& options,
        std::vector<model::SkipNames> carried = {});

  /// The function after the layers; null: none.
  void set_head(Head head) { head_ = std::move(head); }

  /// The stage's outputs, or its head's. Each floating-point input, but for those `without_gradient`, becomes
  /// a leaf of its own whose gradient backward() returns. Throws InvalidArgument as model::run_layer() does.
  Fields forward(int microbatch, const Fields& inputs, const std::vector<std::size_t>& without_gradient = {});
  /// Runs a dropped forward again; backward() does it where it was not done before.
  void recompute(int microbatch);
  /// Adds to the parameters' gradients. Takes the gradient of each output, undefined for one that needs none,
  /// and returns that of each input, undefined where none is needed. Frees the saved tensors of the
  /// micro-batch. Throws InvalidArgument: an output that needs a gradient and gets none.
  model::Tensors backward(int microbatch, const model::Tensors& output_gradients);
  /// backward() in two parts: the first returns the gradients of the inputs and touches none of the
  /// parameters', the second adds to those; it may come after other micro-batches' parts. Where no input has
  /// a gradient, the outputs of the first layers replace them.
  model::Tensors backward_input(int microbatch, const model::Tensors& output_gradients);
  void backward_weight(int microbatch);
  /// Operators whose weights had their gradients in the first part (split_backward.h), so far.
  const std::set<std::string>& unsplit() const { return unsplit_; }
  /// The same for a stage of one tensor.
  at::Tensor backward(int microbatch, const at::Tensor& output_gradient) {
    return backward(microbatch, model::Tensors{output_gradient}).front();
  }
  at::Tensor backward_input(int microbatch, const at::Tensor& output_gradient) {
    return backward_input(microbatch, model::Tensors{output_gradient}).front();
  }
  /// Without gradients, head and traces: in evaluation mode.
  Fields evaluate(const Fields& inputs) const;
  /// Those floating-point outputs that need no gradient although the inputs get one as in forward(), and all
  /// that are not floating-point. A forward in evaluation mode, with a graph.
  std::vector<std::size_t> outputs_without_gradient(const Fields& inputs,
                                                    const std::vector<std::size_t>& without_gradient) const;
  /// Whether something in the micro-batch's forward, parameter or input, is to get a gradient.
  bool learns(int microbatch) const;

  const std::vector<model::Layer>& layers() const { return layers_; }
  /// Micro-batches whose backward, both parts of it, has not ended.
  int num_live() const { return static_cast<int>(live_.size()); }
  /// Forgets micro-batches that an error has left under way.
  void clear() { live_.clear(); }

 private:
  struct Live {
    Fields inputs, outputs;
    model::ForwardRecord record;        ///< of the forward, where it has to run again
    torch::autograd::edge_list begins;  ///< of the first values that have a gradient: where the input's ends
    WeightBackward weights;             ///< after backward_input()
  };

  Fields run(Live& live, int microbatch) const;
  Fields run_layer(std::size_t number, const Fields& values) const;
  Fields run_layers(Fields values) const;
  Fields leaves_of(const Fields& inputs, const std::vector<std::size_t>& without_gradient) const;
  void check_gradients(const Fields& outputs, const model::Tensors& gradients) const;
  std::string backward_place(int microbatch) const;

  std::vector<model::Layer> layers_;
  std::vector<model::SkipNames> carried_;
  const StageOptions options_;
  Head head_;
  std::map<int, Live> live_;
  std::set<std::string> unsplit_;
};

/// Errors of a user's code in `body` name the stage.
template <class Body>
decltype(auto) within_stage(int number, const Body& body) {
  return within([number] { return text("stage ", number); }, body);
}

}  // namespace trireme::parallel
