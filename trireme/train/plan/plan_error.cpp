#include "trireme/train/plan/internal/plan_error.h"

#include <deque>
#include <set>

#include "trireme/base/text.h"
#include "trireme/train/config/internal/config_keys.h"

namespace trireme::train {
namespace {

/// Each try resolves a plan, so a message must not cause too many of them.
constexpr int kMaxTries = 60;

/// Configurations still to be tried: those with fewer changes first.
class Candidates {
 public:
  explicit Candidates(const RunConfig& original) : original_(original), seen_({""}) {}

  void add(const RunConfig& refused, const Fixes& fixes) {
    for (const Fix& fix : fixes) {
      RunConfig changed = refused;
      fix(changed);
      if (seen_.insert(differences(original_, changed)).second) waiting_.push_back(std::move(changed));
    }
  }
  bool empty() const { return waiting_.empty(); }
  RunConfig take() {
    RunConfig next = std::move(waiting_.front());
    waiting_.pop_front();
    return next;
  }

 private:
  const RunConfig& original_;
  std::set<std::string> seen_;
  std::deque<RunConfig> waiting_;
};

}  // namespace

std::string differences(const RunConfig& config, const RunConfig& changed) {
  std::vector<std::string> words;
  for (const ConfigKey& key : config_key_table(config)) {
    const std::string value = to_toml(key.get(changed));
    if (value != to_toml(key.get(config))) words.push_back(text(key.name, " = ", value));
  }
  return join(words);
}

InvalidArgument suggest_fix(const RunConfig& config, const PlanError& plan_error, int world_size,
                            const std::function<void(const RunConfig&)>& check) {
  Candidates candidates(config);
  candidates.add(config, plan_error.fixes());
  for (int tries = 0; tries < kMaxTries && !candidates.empty(); ++tries) {
    const RunConfig next = candidates.take();
    try {
      check(next);
      return InvalidArgument(text(plan_error.what(), "; the nearest plan that works on ", world_size,
                                  world_size == 1 ? " rank: " : " ranks: ", differences(config, next)));
    } catch (const PlanError& another) {
      candidates.add(next, another.fixes());
    } catch (const Error&) {
      continue;  // no fix is known for this one
    }
  }
  return InvalidArgument(plan_error.what());
}

}  // namespace trireme::train
