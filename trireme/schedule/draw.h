#pragma once
// Programs for the eye: a table of cells for the terminal, and an SVG of a simulated timeline. The SVG stands
// by itself (no script, font or link from outside), is valid XML, and has two parts: what each device does in
// order, a slot per action, and the same actions in time. Pure and thread-safe.

#include <string>

#include "trireme/schedule/program.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {

/// One line per rank, cells below each other.
std::string to_table(const Program& program);

/// Colours say what an action is and on which chunk of its rank, numbers which micro-batch it works on.
std::string to_svg(const Program& program, const Timeline& timeline);

}  // namespace trireme::schedule
