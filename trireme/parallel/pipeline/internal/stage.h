#pragma once
// The computations of one stage: forward and backward of micro-batches, each of which may be under way at the
// same time. Knows nothing of other stages. One thread.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "trireme/model/layer.h"
#include "trireme/parallel/pipeline/internal/split_backward.h"

namespace trireme::parallel {

struct StageOptions {
  bool recompute = false;            ///< only inputs are kept; the forward runs again for the backward
  bool wants_input_gradient = true;  ///< some stage before it learns from the gradient
};

class Stage {
 public:
  /// Turns the output of the last layer into the loss of the micro-batch, on the last stage.
  using Head = std::function<at::Tensor(const at::Tensor& output, int microbatch)>;

  Stage(std::vector<model::Layer> layers, const StageOptions& options)
      : layers_(std::move(layers)), options_(options) {}

  /// What comes after the layers; null: nothing.
  void set_head(Head head) { head_ = std::move(head); }

  /// The stage's output, or its head's. `input` becomes a leaf of its own whose gradient backward() returns.
  at::Tensor forward(int microbatch, const at::Tensor& input);
  /// Runs a dropped forward again; backward() does it where it was not done before.
  void recompute(int microbatch);
  /// Adds to the parameters' gradients; the gradient of the input, undefined where none is wanted. What
  /// was kept for the micro-batch is given back.
  at::Tensor backward(int microbatch, const at::Tensor& output_gradient);
  /// backward() in two parts: the first returns the gradient of the input and touches none of the
  /// parameters', the second adds to those; it may come after other micro-batches' parts. An input that has
  /// no gradient is stood for by what the first layers make of it.
  at::Tensor backward_input(int microbatch, const at::Tensor& output_gradient);
  void backward_weight(int microbatch);
  /// Operators whose weights had their gradients in the first part (split_backward.h), so far.
  const std::set<std::string>& unsplit() const { return unsplit_; }
  /// Without gradients, head and traces: in evaluation mode.
  at::Tensor evaluate(const at::Tensor& input);

  const std::vector<model::Layer>& layers() const { return layers_; }
  /// Micro-batches whose backward, both parts of it, has not ended.
  int num_live() const { return static_cast<int>(live_.size()); }
  /// Forgets micro-batches that an error has left under way.
  void clear() { live_.clear(); }

 private:
  struct Live {
    at::Tensor input, output;
    at::Tensor random_state;            ///< before the forward, where it has to run again
    torch::autograd::edge_list begins;  ///< of the first values that have a gradient: where the input's ends
    WeightBackward weights;             ///< behind backward_input()
  };

  at::Tensor run(Live& live, int microbatch) const;
  at::Tensor run_layers(const at::Tensor& input) const;

  std::vector<model::Layer> layers_;
  const StageOptions options_;
  Head head_;
  std::map<int, Live> live_;
  std::set<std::string> unsplit_;
};

}  // namespace trireme::parallel
