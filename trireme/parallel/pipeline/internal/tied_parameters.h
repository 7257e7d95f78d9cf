#pragma once
// Parameters that several ranks hold: an embedding that is also the last layer, a stage with replicas. Every
// holder keeps a copy. The copies begin equal and get the same gradient, the sum of the holders' in the order
// of their stages. So they stay equal, bit by bit. Collective among the holders. One thread.

#include <set>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/model/layer.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {

class TiedParameters {
 public:
  TiedParameters(comm::Group group, const std::vector<model::Layer>& layers,
                 const std::vector<Pipeline::StageLayers>& stages);

  /// Whether any two ranks share a parameter; whether any two stages do.
  bool any() const { return any_; }
  bool across_stages() const { return across_stages_; }
  /// Of all parameters that several ranks or stages have.
  const std::set<std::string>& names() const { return names_; }
  /// Whether this rank is the first of several that have the parameter, or the only one.
  bool is_first_holder(const std::string& name) const { return !held_before_.contains(name); }
  /// Gives all holders the value of the first.
  void make_equal();
  /// Before a step: gradients of the step alone are to be summed.
  void set_aside();
  /// After a step: adds the sum over the holders to the gradients set aside.
  void add_gradients();

 private:
  struct Tied {
    at::Tensor parameter;
    at::Tensor before;       ///< gradient of earlier steps, if any
    std::vector<int> ranks;  ///< in the order of their first stages
  };

  comm::Group group_;
  std::vector<Tied> tied_;  ///< those that this rank holds
  std::set<std::string> names_;
  std::set<std::string> held_before_;  ///< those of this rank that an earlier holder counts
  bool any_ = false, across_stages_ = false;
};

}  // namespace trireme::parallel
