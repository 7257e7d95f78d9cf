#pragma once
// A view of a run as JSON, for scripts and for the page of `trireme top --serve`. Pure.

#include <string>

#include "trireme/telemetry/run_view.h"

namespace trireme::cli {

/// Whether the spans of the ranks' activities are in it: the page draws them.
enum class Spans { kNo, kYes };

/// One object on one line, or indented by `indent` spaces.
std::string json_of(const telemetry::RunView& view, Spans spans, int indent = -1);

}  // namespace trireme::cli
