#pragma once
// A view of a run as lines for a terminal. Pure: the same view and size give the same lines. Names that come
// from files or other programs have no control characters here.

#include <string>
#include <vector>

#include "trireme/telemetry/run_view.h"

namespace trireme::cli {

struct TextSize {
  int columns = 80, rows = 24;
  bool colours = false;
};

/// At most `rows` lines of at most `columns` characters; columns of the table that do not fit are left out,
/// the least important first. rows = 0: all ranks.
std::vector<std::string> lines_of(const telemetry::RunView& view, const TextSize& size);

}  // namespace trireme::cli
