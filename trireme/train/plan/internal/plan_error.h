#pragma once
// Why a plan cannot work, and what would have to change. The nearest plan that works is found by trying: the
// fixes of a rejection one by one, then those of what is rejected instead, so that what is named has been
// resolved.

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
  /// `fixes`: what is nearest comes first.
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

/// The rejection's reason, and after it the changes of the nearest configuration that `check` lets pass; the
/// reason alone where none is found. `check` throws like whoever has rejected.
InvalidArgument suggest_fix(const RunConfig& config, const PlanError& plan_error, int world_size,
                            const std::function<void(const RunConfig&)>& check);

}  // namespace trireme::train
