#pragma once
// What `trireme ps status` prints. Functions of what was seen.

#include <iosfwd>

#include "cli/report_format.h"
#include "trireme/ps/observer.h"

namespace trireme::cli {

void print_cluster(std::ostream& out, const ps::ClusterReport& report, ReportFormat format);

}  // namespace trireme::cli
