#pragma once
// The seam for optimizers: updates parameters from their gradients with libtorch's fused kernels, one call
// for all parameters. State is exposed as named tensors, so that a checkpoint can hold it. Parameters and
// gradients share dtype and device; a parameter without a gradient is left alone. Not thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::optim {

/// Parameters by name, in the model's order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct OptimizerOptions {
  std::string name = "sgd";
  double lr = 0.1;
  double weight_decay = 0;  ///< sgd: L2 (added to the gradient); adamw: decoupled
  double momentum = 0.9;    ///< sgd
  bool nesterov = false;    ///< sgd
  double beta1 = 0.9;       ///< adamw
  double beta2 = 0.999;     ///< adamw
  double eps = 1e-8;        ///< adamw
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update with learning rate `lr`. Gradients are read, not changed.
  virtual void step(double lr) = 0;
  /// State tensors by name ("momentum/fc1.weight"); shared, not copied. The same set for the same parameters
  /// from the start on.
  virtual std::map<std::string, at::Tensor> state() = 0;
};

/// One row per optimizer in optimizer_table.cpp: "sgd", "adamw". Throws InvalidArgument: unknown name,
/// negative rate, beta outside [0, 1).
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, NamedTensors parameters);
std::vector<std::string> optimizer_names();

/// Scales all gradients so that their total 2-norm is at most `max_norm` (> 0); returns the norm before.
/// Undefined gradients count as zero. (Pascanu et al., arXiv 1211.5063.)
double clip_grad_norm(const NamedTensors& parameters, double max_norm);

}  // namespace trireme::optim
