#pragma once
// Reference runs of many tests, trained once per build instead of once per test. A run of one rank gives the
// same bits every time.

#include <string>
#include <vector>

#include "tests/support/trained_run.h"

namespace trireme::test {

/// The result of a training command without `run.folder` and `run.name`. It is trained unless this build's
/// folder has a run of the same words with the same program and files (by size and time). Runs of other
/// programs are removed. Throws std::runtime_error with the output of the command if it fails.
TrainedRun remembered_run(const std::vector<std::string>& command, double timeout_s = 120);

}  // namespace trireme::test
