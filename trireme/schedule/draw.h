#pragma once
// Pictures of programs: a table of cells for the terminal, and an SVG of a simulated timeline. The SVG is
// self-contained (no script, font or link from outside), is valid XML, and has a part for each requested
// view. Pure and thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "trireme/schedule/program.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {

/// One line per rank, cells below each other. If stages update while others are in flight, "0F4:v1" is a
/// forward with version 1 of its stage's weights. A last line then explains it (schedule/weight_versions.h).
std::string to_table(const Program& program);

enum class View {
  kDevice,        ///< "device": a row per rank; every action takes one slot, after those that it needs
  kTime,          ///< "time": a row per rank, actions as long as they take
  kMicrobatches,  ///< "microbatches": a row per micro-batch, its way through the stages in time, W left out
};

/// Throws InvalidArgument that suggests the nearest known name.
View parse_view(std::string_view name);

/// Colours show the kind of an action and the chunk of its rank, numbers the micro-batch; in the view of
/// micro-batches, the stage. Asynchronous programs have in each box the version of weights that the action
/// uses or makes. At least one view.
std::string to_svg(const Program& program, const Timeline& timeline,
                   const std::vector<View>& views = {View::kDevice, View::kTime});

}  // namespace trireme::schedule
