#pragma once
// Planned and measured timelines: one HTML page that needs no other file and no network. Every rank has one
// row for the program, simulated with the given costs. Below it is a row for each measured step. Colours are
// those of to_svg (draw.h). Boxes have the number of the micro-batch if there is room. Every row has its
// bubble share. A script zooms and pans; without scripts, and in print, the whole page is visible. Pure.

#include <string>
#include <vector>

#include "trireme/schedule/timed_action.h"

namespace trireme::schedule {

/// Measured times of the actions of each rank in a step.
struct MeasuredStep {
  std::string name;  ///< "step 12"
  TimedRanks ranks;
};

struct TimelinePage {
  std::string title;
  std::string remark = {};  ///< a sentence below the title; may be empty
  Program program;
  Costs costs;  ///< in seconds, as mean_costs() makes them
  std::vector<MeasuredStep> steps;
  std::vector<std::string> stages = {};  ///< layers of each; none: unknown
};

/// Every row begins at its own step's begin, and the axis ends after the last update. A step may be of
/// several times as many ranks as the program, replicas of a stage next to each other. Throws InvalidArgument
/// when it is of another number of them, or the costs do not fit the program.
std::string timeline_page(const TimelinePage& page);

}  // namespace trireme::schedule
