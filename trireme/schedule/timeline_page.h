#pragma once
// Planned and measured, for people: one HTML page that needs no other file and no network. For every rank
// a row with the program as it is simulated with the given costs, and below it a row for each measured step;
// colours as in to_svg (draw.h), the number of the micro-batch in a box where there is room, the share of
// bubble of every row, and a script that zooms and pans. Without script the whole is seen, and printed. Pure.

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
