#pragma once
// The reason why a plan cannot work, and its fixes. The nearest plan that works is found by trials: the fixes
// of a rejection one by one, then those of the next rejection, so that the named plan has been resolved.

#include <functional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// A change of a configuration that may make it work.
using Fix = std::function<void(RunConfig&)>;
using Fixes = std::vector<Fix>;

class PlanError : public InvalidArgument {
 public:
  /// `fixes`: the nearest come first.
  PlanError(const std::string& reason, Fixes fixes) : InvalidArgument(reason), fixes_(std::move(fixes)) {}
  const Fixes& fixes() const { return fixes_; }

 private:
  Fixes fixes_;
};

/// Throws a PlanError with the reason and those fixes unless `sound`.
template <class... Parts>
void reject_unless(bool sound, const Fixes& fixes, const Parts&... reason) {
  if (!sound) throw PlanError(text(reason...), fixes);
}

/// Keys and values in which `changed` is not `config`: "parallel.data = 0, train.clip_norm = 0.0".
std::string differences(const RunConfig& config, const RunConfig& changed);

/// The rejection's reason, and after it the changes of the nearest configuration that passes `check`; the
/// reason alone where none is found. `check` throws like the rejecting code.
InvalidArgument suggest_fix(const RunConfig& config, const PlanError& plan_error, int world_size,
                            const std::function<void(const RunConfig&)>& check);

}  // namespace trireme::train
