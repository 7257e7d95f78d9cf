#pragma once
// Parameters that several stages of one rank have, such as an embedding that is also the last layer: their
// gradient is whole when all of those stages have done, and is reduced among replicas then. Collective among
// the replicas. One thread.

#include <map>
#include <optional>
#include <set>
#include <string>

#include "trireme/comm/group.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/pipeline/internal/stage.h"

namespace trireme::parallel {

class CommonParameters {
 public:
  /// Replicas get the values of the first one when make_equal() is called.
  CommonParameters(std::optional<comm::Group> data, ReduceScale scale, const std::map<int, Stage>& stages);

  const std::set<std::string>& names() const { return names_; }
  void make_equal();
  /// Of all stages' gradients: after them, and before anything is updated. One that no stage has reached
  /// counts as zero.
  void reduce();

 private:
  std::optional<comm::Group> data_;  ///< none: there are no replicas
  const ReduceScale scale_;
  std::set<std::string> names_;
  optim::NamedTensors parameters_;
};

}  // namespace trireme::parallel
