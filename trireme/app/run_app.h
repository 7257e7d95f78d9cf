#pragma once
// The command line for a program that brings models, data sets, objectives and metrics of its own: all of its
// main.
//
//   int main(int argc, char** argv) {
//     return trireme::run_app(argc, argv, {.models = {{"towers", make_towers}},
//                                          .datasets = {{"clicks", open_clicks}}});
//   }
//
// The program then has the commands train, verify, profile, memory, estimate, find-batch, plan, launch, runs,
// checkpoint, data, schedule, simulate, backends and completion. It reads configurations that name its types.
// With -n N it starts itself as N ranks; mpirun, srun, torchrun and `trireme launch` can start it too. Its
// name is that of its file.

#include "trireme/train/config/registry.h"

namespace trireme {

/// Call it once, first thing in main; it may become another process (exec). Returns the exit code: errors are
/// one line on standard error.
int run_app(int argc, char** argv, train::OwnTypes own);

}  // namespace trireme
