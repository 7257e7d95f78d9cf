#pragma once
// The one implementation of Optimizer: parameters in groups, the state of each by name, and an UpdateRule
// that does the arithmetic, one call per group. With `decay_1d` false there are two groups: tensors with two
// dims or more, and the rest. The rest is neither decayed nor scaled by a trust ratio, as in training scripts
// of transformers and in the papers of LARS and LAMB. The names of the state do not depend on the groups.
// Offloaded state is updated part by part. A part is some parameters, or a run of elements of one parameter
// if the rule is element-wise.

#include <optional>

#include "trireme/optim/offload.h"
#include "trireme/optim/tensor_parts.h"
#include "trireme/optim/update_rule.h"

namespace trireme::optim {

/// Context of an optimizer at its construction.
struct Surroundings {
  std::shared_ptr<Offload> offload = nullptr;          ///< null: all is in memory
  std::shared_ptr<const TensorParts> parts = nullptr;  ///< null: all parameters are whole
};

class GroupedOptimizer : public Optimizer {
 public:
  /// Of `options` only lr, weight_decay and decay_1d are read, 1e-3 and 0 where the first two are not given;
  /// the rule has read its own. The rules here take options that are all given (with_defaults()).
  GroupedOptimizer(std::unique_ptr<UpdateRule> rule, const OptimizerOptions& options, NamedTensors parameters,
                   const Surroundings& surroundings = {});
  std::map<std::string, at::Tensor> state() override;

  bool can_leave_out() const override { return rule_->can_leave_out(); }

 protected:
  void update(double lr) override { update_lists(lr, std::nullopt); }
  void update_unless(double lr, const at::Tensor& leave_out) override;

 private:
  struct Group {
    GroupSettings settings = {};
    NamedTensors parameters = {};
    std::vector<TensorVector> states = {};  ///< [state of the rule][parameter]
  };
  /// The part of a parameter that is updated at once.
  struct Run {
    std::size_t parameter;
    std::int64_t begin = 0, numel = 0;  ///< in row-major order, where it is not all
    bool is_all = true, is_last = true;
  };
  /// Runs of a group that are brought together, and of which views that is.
  struct Part {
    std::size_t group;
    std::vector<Run> runs;
    Offload::Part views;
  };

  void update_lists(double lr, const std::optional<at::Tensor>& leave_out);
  void add_group(const GroupSettings& settings, NamedTensors parameters);
  std::vector<TensorVector> make_states(const NamedTensors& parameters) const;
  std::optional<UpdateLists> lists_of(const Group& group) const;
  bool is_elsewhere(const StateTensor& kind) const;
  bool passes_in_parts() const;
  std::vector<at::Tensor> offloaded_storage_of(const Group& group, std::size_t parameter) const;
  std::vector<Run> runs_of(const Group& group, std::size_t parameter) const;
  std::vector<Part> parts_to_update() const;
  UpdateLists lists_of(const Part& part, const Offload::Part& brought) const;
  void add_part_of(UpdateLists& lists, const std::string& parameter) const;

  std::unique_ptr<UpdateRule> rule_;
  std::vector<StateTensor> kinds_;
  std::vector<Group> groups_;
  std::shared_ptr<Offload> offload_;  ///< null: all is in memory
  std::shared_ptr<const TensorParts> parts_;
};

}  // namespace trireme::optim
