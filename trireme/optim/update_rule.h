#pragma once
// The interface inside an optimizer. An UpdateRule is the arithmetic of one optimizer, without parameters,
// groups, names or state of its own. A GroupedOptimizer holds those and calls the rule once per group. A
// custom optimizer is one such class: make it a GroupedOptimizer, and groups, named state and checkpoints are
// there. Rules are immutable after construction.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

/// Tensors in the order of a group's parameters, as fused kernels take them.
using TensorVector = std::vector<at::Tensor>;

/// One state tensor of each parameter; it begins as zeros.
struct StateTensor {
  enum class Form {
    kLikeParameter,
    kNumber,  ///< f32, no dims, on the parameter's device: of all of it, such as its updates so far
  };
  std::string name;  ///< "exp_avg"
  Form form = Form::kLikeParameter;
};

/// Common settings of all parameters of a group.
struct GroupSettings {
  double weight_decay = 0;
  bool adaptive = true;  ///< lars, lamb: false is a trust ratio of 1
};

struct PartOfTensor;
class TensorParts;

/// The parameters of one group that have a gradient; lists of the same length, in the same order, not empty.
struct UpdateLists {
  TensorVector values, gradients;
  std::vector<TensorVector> states;  ///< one list per StateTensor of the rule, in its order
  /// The whole tensor of each parameter that is a part, null for whole ones; empty: all are whole.
  std::vector<const PartOfTensor*> parts = {};
  const TensorParts* others = nullptr;  ///< that hold the rest of them
  /// f32, no dims, on their device: nothing changes where it is 1 and not 0. None: all is updated. Only of
  /// rules that can_leave_out().
  std::optional<at::Tensor> leave_out = {};
  /// f32, no dims, on their device: the rate, instead of the host's. The same rules.
  std::optional<at::Tensor> lr = {};
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// The state that every parameter has.
  virtual std::vector<StateTensor> states() const = 0;
  /// Whether each element is updated from its own value, gradient and state alone, so that runs of a tensor
  /// may be updated one by one.
  virtual bool goes_by_elements() const { return false; }
  /// Whether it reads UpdateLists::leave_out.
  virtual bool can_leave_out() const { return false; }
  /// Updates values and states in place, without recording gradients. Must not change gradients.
  virtual void update(UpdateLists& lists, const GroupSettings& group, double lr) const = 0;
};

/// Throw InvalidArgument: "the beta1 of adamw must be in [0, 1), not 1.5". `option` is the field's name.
void require_fraction(const OptimizerOptions& options, const char* option, double value);
void require_positive(const OptimizerOptions& options, const char* option, double value);
void require_not_negative(const OptimizerOptions& options, const char* option, double value);

}  // namespace trireme::optim
