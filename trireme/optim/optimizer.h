#pragma once
// The seam for optimizers: updates parameters from their gradients with libtorch's fused or foreach kernels,
// one call for all parameters of a group. State is exposed as named tensors, so that a checkpoint can hold
// it. Parameters and gradients share dtype and device; a parameter without a gradient is left alone, and does
// not age. Not thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::optim {

/// Parameters by name, in the model's order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// All options of all optimizers; each reads those that name it. Values without a unit are plain numbers. An
/// option that is not given has the default of its optimizer (with_defaults()): PyTorch's, where PyTorch has
/// that optimizer.
struct OptimizerOptions {
  std::string name = "sgd";
  std::optional<double> lr = {};  ///< all: the rate of steps until set_lr() changes it, >= 0
  /// All, >= 0. sgd, adam, adagrad, rmsprop: L2, `weight_decay * p` is added to the gradient. lars: L2, and
  /// part of the trust ratio. adamw, lion, muon: decoupled, p shrinks by `lr * weight_decay`. lamb: added to
  /// the update before its trust ratio.
  std::optional<double> weight_decay = {};
  /// All. False: tensors with at most one dim (biases, norms) are not decayed, and lars and lamb update them
  /// with a trust ratio of 1. True decays everything, as PyTorch does.
  bool decay_1d = true;
  std::optional<double> momentum = {};  ///< sgd, lars, rmsprop, muon, in [0, 1)
  std::optional<bool> nesterov = {};    ///< sgd, muon
  double beta1 = 0.9;                   ///< adam, adamw, lion, lamb, muon's adamw, in [0, 1)
  std::optional<double> beta2 = {};     ///< the same, in [0, 1)
  double alpha = 0.99;                  ///< rmsprop: decay of the mean square, in [0, 1)
  bool centered = false;  ///< rmsprop: divides by the deviation, not the root of the mean square
  /// adam, adamw, lamb: updates after which the mean square stays as it is; 0: it never does. Of gradients
  /// that a compression of the momentum brings: 1-bit Adam, 1-bit LAMB (docs/compression.md).
  std::int64_t variance_steps = 0;
  std::optional<double> eps = {};    ///< all with beta2 but lion, adagrad, rmsprop; > 0
  double trust_coefficient = 0.001;  ///< lars: share of its own norm by which a tensor moves at lr 1, > 0
  /// muon: "original", or "match_rms_adamw", by which rate and decay of adamw fit its matrices too.
  std::string muon_scale = "original";
  /// muon: tensors with one of these in their names go to adamw, as all with at most one dim do.
  std::vector<std::string> muon_spares = {"wte", "wpe", "embed", "lm_head"};
  double muon_adamw_rate = 1;  ///< muon: rate of the parameters of adamw, as a multiple of lr, >= 0
};

/// The options of that optimizer with its defaults for values that are not given: lr, weight_decay, momentum,
/// nesterov, beta2 and eps are there. Throws InvalidArgument: an unknown name.
///
/// | optimizer | lr | weight_decay | momentum | nesterov | beta2 | eps |
/// | sgd | 1e-3 | 0 | 0 | false | | |
/// | adam | 1e-3 | 0 | | | 0.999 | 1e-8 |
/// | adamw | 1e-3 | 1e-2 | | | 0.999 | 1e-8 |
/// | adagrad | 1e-2 | 0 | | | | 1e-10 |
/// | rmsprop | 1e-2 | 0 | 0 | | | 1e-8 |
/// | muon | 1e-3 | 0.1 | 0.95 | true | 0.999 | 1e-8 |
/// | lion (as its paper) | 1e-4 | 0 | | | 0.99 | |
/// | lars (as its paper) | 0.1 | 0 | 0.9 | | | |
/// | lamb (as its paper) | 1e-3 | 0 | | | 0.999 | 1e-6 |
OptimizerOptions with_defaults(OptimizerOptions options);

/// Throws InvalidArgument below 0, and where it is no finite number.
void require_learning_rate(double lr);

class Offload;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update with the learning rate lr(). Gradients are read, not changed.
  void step() { update(lr_); }
  /// A step that is skipped where `leave_out` is 1 and not 0. `leave_out` is f32, has no dims, and is on the
  /// device of the parameters. The host does not read it. A skipped step keeps parameters and state. Throws
  /// InvalidArgument unless can_leave_out().
  void step(const at::Tensor& leave_out) { update_unless(lr_, leave_out); }
  virtual bool can_leave_out() const { return false; }
  /// The rate of the steps from here on; a schedule sets it before each. No part of state():
  /// after a resume it is set again. Throws as require_learning_rate() does.
  void set_lr(double lr) {
    require_learning_rate(lr);
    lr_ = lr;
    if (lr_there_.defined()) lr_there_.fill_(lr);
  }
  double lr() const { return lr_; }
  /// From here on step() reads the rate from a number of that device, which set_lr() writes without a wait:
  /// an update that is captured in a graph (parallel/graphed_step.h) then follows set_lr(). The number is
  /// f32. Throws InvalidArgument unless can_leave_out(), whose kernels take such a rate as well.
  virtual void keep_lr_on(c10::Device device);
  /// State tensors by name ("momentum/fc1.weight"); shared, not copied. The same set for the same parameters
  /// from the start on. Offloaded ones are meta tensors; Offload has their values.
  virtual std::map<std::string, at::Tensor> state() = 0;

  // For optimizers whose updates run elsewhere while this rank continues.
  /// The gradient of that parameter is complete before step(), whose rate is already lr(). Optional for each
  /// parameter.
  virtual void gradient_is_final(const at::Tensor& /*parameter*/) {}
  /// Waits until all parameters have the values of the next step.
  virtual void finish_pending_updates() {}
  /// The same for these parameters only. Cheap for those that are up to date.
  virtual void finish_pending_updates(const NamedTensors& /*parameters*/) {}
  /// Brings parameters to the result of all ranks' steps. Collective, at the same step.
  virtual void synchronize() {}
  /// Brings parameters and state() up to date; after synchronize() to the result of all ranks' steps.
  virtual void pull_state() {}
  /// Parameters and state() have been restored. Collective.
  virtual void restored() {}
  /// Steps of the slowest rank that were missing in the values of the last step; none if they are not
  /// counted.
  virtual std::optional<int> staleness() const { return std::nullopt; }
  /// Seconds for which this rank has waited in these calls so far.
  virtual double waited_s() const { return 0; }

 protected:
  /// The rate of the options.
  explicit Optimizer(double lr) { set_lr(lr); }
  virtual void update(double lr) = 0;
  /// Of optimizers that can_leave_out().
  virtual void update_unless(double lr, const at::Tensor& leave_out);
  /// Undefined without keep_lr_on().
  const at::Tensor& lr_there() const { return lr_there_; }

 private:
  double lr_ = 0;
  at::Tensor lr_there_;  ///< f32, no dims
};

/// One row per optimizer in optimizer_table.cpp. Throws InvalidArgument that names the optimizer, the value
/// and the allowed range; for an unknown name, the nearest known one.
/// With `offload` tensors of the parameters' sizes live there
/// and are updated part by part, with the same bits; so do parameters that it has.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, NamedTensors parameters,
                                          std::shared_ptr<Offload> offload = nullptr);
std::vector<std::string> optimizer_names();
std::vector<std::string> muon_scale_names();

/// Whether that optimizer divides a gradient by its own size, or takes its sign: there the rounding of a
/// gradient that is nothing but rounding decides a whole step. Throws as make_optimizer() does.
bool normalises_gradients(const std::string& name);

/// Whether that optimizer looks at the norm or the shape of whole tensors: a piece of one would not do.
/// Throws as make_optimizer() does.
bool needs_whole_tensors(const std::string& name);

/// Scales all gradients so that their total 2-norm is at most `max_norm` (> 0); returns the norm before.
/// Undefined gradients count as zero. (Pascanu et al., arXiv 1211.5063.)
double clip_grad_norm(const NamedTensors& parameters, double max_norm);

/// The same for a norm that is known, of more gradients than these perhaps: each is multiplied with
/// max_norm / norm where that is below 1. Throws InvalidArgument: max_norm not above 0.
void clip_to_norm(const NamedTensors& parameters, double norm, double max_norm);
/// The same for a norm on a device, which is not waited for.
void clip_to_norm(const NamedTensors& parameters, const at::Tensor& norm, double max_norm);

}  // namespace trireme::optim
