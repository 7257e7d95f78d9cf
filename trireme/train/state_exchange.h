#pragma once
// Tensors of a run by name, where each name lives on one or more ranks (the stages of a pipeline, its
// replicas) and rank 0 reads and writes the files: gathers them there, and gives them back. So a checkpoint
// does not know how the model was cut. Made once for names that stay the same; collective. One thread.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/safetensors.h"
#include "trireme/comm/group.h"

namespace trireme::train {

class StateExchange {
 public:
  /// `mine`: this rank's tensors. Throws CommError; InvalidArgument when two ranks hold a name differently.
  StateExchange(comm::Group world, const checkpoint::TensorMap& mine);

  /// On rank 0 the tensors of all ranks: its own, shared, and copies of the others'. Elsewhere nothing.
  /// Sends each tensor that rank 0 does not hold once.
  /// With `wanted`, only the names for which it says so.
  checkpoint::TensorMap gather(const checkpoint::TensorMap& mine,
                               const std::function<bool(const std::string&)>& wanted = nullptr);

  /// Copies what rank 0 has found, in `found`, into all ranks' tensors. Throws DataError, on rank 0 and
  /// before anything is copied, when a name is missing or has another shape or type; `what` it then calls it.
  void scatter(const checkpoint::TensorMap& found, const checkpoint::TensorMap& mine, const char* what);

 private:
  struct Entry {
    std::vector<std::int64_t> sizes;
    at::ScalarType type = at::kFloat;
    std::vector<int> holders;  ///< ranks, rising
  };
  bool holds(const Entry& entry, int rank) const;
  void check(const checkpoint::TensorMap& found, const char* what) const;

  comm::Group world_;
  std::map<std::string, Entry> entries_;  ///< the same on all ranks
};

}  // namespace trireme::train
