#pragma once
// Versions of a stage's weights in an asynchronous pipeline, read off its program before it runs: executor,
// simulator and drawings use these. A version is a number of updates of the stage; 0 are its first weights.
// Narayanan et al., "PipeDream", SOSP 2019, section 3.3, and "Memory-Efficient Pipeline-Parallel DNN
// Training", arXiv 2006.09503, section 3.1. Pure and thread-safe; linear in the actions.

#include <vector>

#include "trireme/schedule/program.h"

namespace trireme::schedule {

/// [stage][micro-batch]: the version that forward and backward of a micro-batch use.
std::vector<std::vector<int>> weight_versions(const Program& program);

constexpr int kNoVersion = -1;

/// [rank][i], of action i of a rank: the version that a computation uses, or that a STEP makes. kNoVersion
/// for other actions, and for all of a program that updates once, at its end.
std::vector<std::vector<int>> versions_by_action(const Program& program);

}  // namespace trireme::schedule
