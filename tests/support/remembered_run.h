#pragma once
// Runs that many tests compare with, trained once for a build instead of once for each test: a run of one
// rank has the same bits every time.

#include <string>
#include <vector>

#include "tests/support/trained_run.h"

namespace trireme::test {

/// What a training command leaves behind, `run.folder` and `run.name` left open. It is trained where this
/// build's folder has no run of the same words with the same program and files (by size and time); of other
/// programs none is kept. Throws std::runtime_error with what the command printed, when it fails.
TrainedRun remembered_run(const std::vector<std::string>& command, double timeout_s = 120);

}  // namespace trireme::test
