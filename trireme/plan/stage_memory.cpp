#include "trireme/plan/stage_memory.h"

#include <algorithm>

#include "trireme/plan/internal/kept_bytes.h"

namespace trireme::plan {
namespace {

class Stage {
 public:
  Stage(std::span<const LayerMemory> layers, const StageForm& form)
      : layers_(layers),
        recomputed_(form.recomputed.layers),
        edges_(form.edges),
        copies_gradients_(form.gradients == GradientsOfStage::kCopied) {
    recomputed_.resize(layers.size(), false);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      kept_.push_back(kept_bytes(layers[i].kept, recomputed_[i], is_kept_behind(i)));
      all_kept_ += kept_.back();
    }
    // The last output is the root of the backward, and stays until then.
    const bool counted = keeps_output(layers.size() - 1);
    own_edges_ = edges_.input_bytes + (counted ? 0 : edges_.output_bytes);
  }

  double kept() const { return all_kept_ + own_edges_; }

  double forward() const {
    double before = 0, most = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      // A recomputed layer builds its graph without the tensors that the graph saves.
      const Recomputable& layer = layers_[i].kept;
      const double saved = recomputed_[i] ? layer.inner_bytes : 0;
      most = std::max(
          most, before + input_not_kept(i) + std::max(layers_[i].forward_bytes - saved, layer.output_bytes));
      before += kept_[i];
    }
    return edges_.input_bytes + most;
  }

  struct Backward {
    double bytes = 0;
    double gradients = 0;  ///< of these bytes
  };
  /// `gradients_stay`: the gradients of each layer are allocated in its backward, and stay.
  Backward backward(bool gradients_stay) const {
    double left = kept(), gradients = 0;
    Backward most;
    for (std::size_t i = layers_.size(); i-- > 0;) {
      if (gradients_stay) gradients += layers_[i].gradient_bytes;
      const double again = made_again_bytes(layers_[i].kept, recomputed_[i]);
      const double copied = copies_gradients_ ? layers_[i].largest_gradient_bytes : 0;
      const double bytes = left + again + std::max(layers_[i].backward_bytes, copied) + gradients;
      if (bytes > most.bytes) most = {.bytes = bytes, .gradients = gradients};
      left -= kept_[i];
    }
    return most;
  }

  double input_backward() const {
    double left = kept(), for_weights = 0, most = 0;
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const double again = made_again_bytes(layers_[i].kept, recomputed_[i]);
      most = std::max(most, left + for_weights + again + layers_[i].input_backward_bytes);
      left -= kept_[i];
      for_weights += layers_[i].for_weights_bytes;
    }
    return most;
  }

 private:
  bool is_kept_behind(std::size_t i) const {
    return i + 1 < layers_.size() && keeps_input(layers_[i + 1].kept, recomputed_[i + 1]);
  }
  bool keeps_output(std::size_t i) const {
    return is_kept_behind(i) || (!recomputed_[i] && layers_[i].kept.saves_output);
  }
  /// Bytes of a layer's input that no layer keeps.
  double input_not_kept(std::size_t i) const {
    return i == 0 || keeps_output(i - 1) ? 0 : layers_[i - 1].kept.output_bytes;
  }

  std::span<const LayerMemory> layers_;
  std::vector<bool> recomputed_;
  const StageEdges edges_;
  const bool copies_gradients_;
  std::vector<double> kept_;
  double all_kept_ = 0, own_edges_ = 0;
};

}  // namespace

StageMemory memory_of_stage(std::span<const LayerMemory> layers, const StageForm& form) {
  const Stage stage(layers, form);
  const auto first = stage.backward(true);
  StageMemory memory{.kept_bytes = stage.kept(),
                     .forward_bytes = stage.forward(),
                     .backward_bytes = stage.backward(false).bytes,
                     .first_backward_bytes = first.bytes,
                     .first_gradient_bytes = first.gradients,
                     .input_backward_bytes = stage.input_backward()};
  for (const LayerMemory& layer : layers) {
    memory.gradient_bytes += layer.gradient_bytes;
    memory.for_weights_bytes += layer.for_weights_bytes;
    memory.largest_gradient_bytes = std::max(memory.largest_gradient_bytes, layer.largest_gradient_bytes);
  }
  if (form.recomputed.stage) {
    // The whole forward runs again after the kept bytes, as if its tensors had been kept.
    memory.kept_bytes = form.edges.input_bytes;
    memory.backward_bytes = std::max(memory.backward_bytes, memory.forward_bytes);
    if (memory.first_backward_bytes < memory.forward_bytes) {
      memory.first_backward_bytes = memory.forward_bytes;
      memory.first_gradient_bytes = 0;
    }
  }
  return memory;
}

}  // namespace trireme::plan
