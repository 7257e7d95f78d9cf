#pragma once
// The one implementation of Optimizer: parameters in groups, the state of each by name, and an UpdateRule
// that does the arithmetic, one call per group. With `decay_1d` false there are two groups, as the training
// scripts of transformers and the authors of LARS and LAMB have them: tensors with two dims or more, and the
// rest, which are neither decayed nor scaled by a trust ratio. The names of the state do not depend on the
// groups.

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

class GroupedOptimizer : public Optimizer {
 public:
  /// Of `options` only weight_decay and decay_1d are read; the rule has read its own.
  GroupedOptimizer(std::unique_ptr<UpdateRule> rule, const OptimizerOptions& options,
                   NamedTensors parameters);
  void step(double lr) override;
  std::map<std::string, at::Tensor> state() override;

 private:
  struct Group {
    GroupSettings settings = {};
    NamedTensors parameters = {};
    std::vector<TensorVector> states = {};  ///< [state of the rule][parameter]
  };

  void add_group(const GroupSettings& settings, NamedTensors parameters);
  static UpdateLists lists_of(const Group& group);

  std::unique_ptr<UpdateRule> rule_;
  std::vector<StateTensor> kinds_;
  std::vector<Group> groups_;
};

}  // namespace trireme::optim
