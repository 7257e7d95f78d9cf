#pragma once
// The ranks of `trireme topology`: they meet as any ranks do, describe their hosts, and probe their links.

#include <iosfwd>
#include <optional>
#include <string>

#include "cli/topology/report.h"

namespace trireme::cli {

struct MeasureOptions {
  std::string cache;     ///< folder of earlier results, by hosts and ranks; empty: none
  double timeout_s = 5;  ///< of a pair of ranks; the others wait twice as long
};

/// Collective: every rank that the environment tells of calls it, each in a process of its own. The report,
/// on rank 0; the others help. What a cache held that cannot be used is said on `log`. Throws CommError, on
/// all ranks, that names the ranks or the pair; InvalidArgument where this launcher is not understood.
std::optional<TopologyReport> measure_topology(const MeasureOptions& options, std::ostream& log);

}  // namespace trireme::cli
