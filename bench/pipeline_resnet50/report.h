#pragma once
// The sweep's results as a table, as JSON, and as one HTML page with two figures. Pure functions.

#include <string>
#include <vector>

#include "bench/pipeline_resnet50/sweep.h"

namespace trireme::bench {

/// What a way's measurements come to.
struct Summary {
  Spread seconds;
  double faster = 0;    ///< than one process: 0.5 is 50 % faster; medians
  Spread ideal_s;       ///< of pipelines; all 0 for one process
  Spread of_the_ideal;  ///< ideal / measured, pass by pass
};

/// `single` is the way with one process.
Summary summary_of(const Way& way, const Way& single);

std::string report_table(const SweepOptions& options, const std::vector<Way>& ways);
std::string report_json(const SweepOptions& options, const std::vector<Way>& ways);
std::string report_page(const SweepOptions& options, const std::vector<Way>& ways);

}  // namespace trireme::bench
