#pragma once
// Why a plan cannot work, and what would have to change. The nearest plan that works is found by trying: the
// cures of a refusal one by one, then those of what is refused instead, so that what is named has been
// resolved.

#include <functional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// A change of a configuration that may make it work.
using Cure = std::function<void(RunConfig&)>;
using Cures = std::vector<Cure>;

class Refusal : public InvalidArgument {
 public:
  /// `cures`: what is nearest comes first.
  Refusal(const std::string& reason, Cures cures) : InvalidArgument(reason), cures_(std::move(cures)) {}
  const Cures& cures() const { return cures_; }

 private:
  Cures cures_;
};

/// Throws a Refusal with the reason and those cures unless `sound`.
template <class... Parts>
void refuse_unless(bool sound, const Cures& cures, const Parts&... reason) {
  if (!sound) throw Refusal(text(reason...), cures);
}

/// Keys and values in which `changed` is not `config`: "parallel.data = 0, train.clip_norm = 0.0".
std::string differences(const RunConfig& config, const RunConfig& changed);

/// The refusal's reason, and behind it the changes of the nearest configuration that `check` lets pass; the
/// reason alone where none is found. `check` throws like whoever has refused.
InvalidArgument with_nearest(const RunConfig& config, const Refusal& refusal, int world_size,
                             const std::function<void(const RunConfig&)>& check);

}  // namespace trireme::train
