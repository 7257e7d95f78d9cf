#pragma once
// Several versions of the weights of a stage, alive at the same time: asynchronous pipelines run the backward
// of a micro-batch with the weights that its forward has seen, while others have been updated since (weight
// stashing: Narayanan et al., "PipeDream", SOSP 2019, section 3.3).
//
// The parameters of the modules (the leaves of autograd's graph) show one version at a time, the one that the
// current computation asks for; newest() are tensors of their own, which an optimizer updates in place. A
// version that is still asked for stays in its storage, and the newest moves on to another one before it is
// updated; storages go round. Showing a version copies nothing. One thread.

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

class VersionedParameters {
 public:
  /// `leaves` keep their values, which are version 0 and the newest.
  explicit VersionedParameters(optim::NamedTensors leaves);

  /// By the names of the leaves. Their gradients are those of the leaves between begin_update() and
  /// end_update().
  const optim::NamedTensors& newest() const { return newest_; }
  int version() const { return version_; }
  /// Versions in memory, the newest included.
  int num_kept() const { return static_cast<int>(old_.size()) + 1; }

  /// Starts to count from 0 again; nothing old may be in use.
  void restart();
  /// Number of release(v) calls for each version, from the start on; earlier calls count.
  void set_uses(std::vector<int> uses) { uses_ = std::move(uses); }
  /// The leaves are `version` from now on. Throws InternalError: it is not there.
  void show(int version);
  void show_newest() { show(version_); }
  /// A use of the version is over.
  void release(int version);

  /// The newest tensors get the leaves' gradients, times `scale`, and storage of their own where the version
  /// is still used.
  void begin_update(double scale = 1);
  /// The newest are a version on, without gradients.
  void end_update();

 private:
  void show(const std::vector<at::Tensor>& values, int version);
  bool is_used(int version) const;

  optim::NamedTensors leaves_, newest_;
  std::map<int, std::vector<at::Tensor>> old_;  ///< versions before the newest that are still used
  std::vector<std::vector<at::Tensor>> spare_;  ///< free storages
  std::vector<int> uses_, released_;            ///< by version
  int version_ = 0;
  static constexpr int kNone = -1;
  int shown_ = 0;
};

}  // namespace trireme::parallel
