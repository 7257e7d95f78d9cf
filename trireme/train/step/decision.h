#pragma once
// A change that a run makes while it trains (parts/adaptation.h): a line of metrics.jsonl, a note, a row of
// the report. Values.

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::train {

/// kTried: the change is measured from now on. kKept, kReverted: how that ended. kSet: changed for a reason
/// that step times do not judge. kSkipped: not tried, because the estimated gain is too small to be measured.
enum class Verdict { kTried, kKept, kReverted, kSet, kSkipped };
/// "tried", "kept", "reverted", "set", "skipped".
std::string_view name_of(Verdict verdict);

struct Decision {
  std::int64_t step = 0;       ///< whose report led to it
  std::int64_t from_step = 0;  ///< the first step with the new value, counted from 1
  std::string knob = {};       ///< "shares of replicas"
  Verdict verdict = Verdict::kTried;
  std::string from = {}, to = {};  ///< values
  std::string reason = {};
  double before_s = 0;     ///< seconds per step, the median before the change; 0: not measured
  double after_s = 0;      ///< the same after it
  double estimated_s = 0;  ///< as the knob has estimated it
};

/// "adapt: shares of replicas 24 24 -> 30 18 (tried): ...".
std::string describe(const Decision& decision);

}  // namespace trireme::train
