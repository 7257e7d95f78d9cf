#pragma once
// `trireme top --serve PORT`: the view as a page on this host's loopback, until the run or the command ends.

#include "cli/top/live_view.h"

namespace trireme::cli {

/// Port 0 takes a free one. Prints the URL, which has the token without which nothing is shown. Returns an
/// exit code. Throws CommError for a port that is taken.
int serve_view(LiveView& live, int port, double interval_s);

/// What became of a run whose ranks are gone.
std::string end_of_run(const std::string& folder);

}  // namespace trireme::cli
