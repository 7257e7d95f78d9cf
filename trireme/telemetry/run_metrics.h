#pragma once
// The ranks of a run on this host as text that Prometheus reads. Pure.

#include <string>

#include "trireme/telemetry/run_view.h"

namespace trireme::telemetry {

/// `view`: between an earlier sample and this one, for the straggler; the rest are counters.
std::string metrics_text(const RunSample& sample, const RunView& view);

}  // namespace trireme::telemetry
