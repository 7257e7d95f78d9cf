#pragma once
// What `trireme doctor` finds out, one line each; every check is a function that returns its lines and never
// throws for what it finds.

#include <string>
#include <vector>

namespace trireme::cli {

enum class FindingState {
  kOk,
  kAbsent,  ///< not on this machine, and nothing is wrong with that
  kSlow,    ///< works, but slower than it could
  kFails,   ///< something that needs it will fail
};

struct Finding {
  std::string subject;  ///< "cores"
  FindingState state = FindingState::kOk;
  std::string found;   ///< "2 of 2 (affinity), no quota"
  std::string advice;  ///< what would be slow or fail, and what to do; empty when ok
};

using Findings = std::vector<Finding>;

Findings check_host();           ///< cores, processor, memory, limits, clock
Findings check_shared_memory();  ///< /dev/shm, memfd, attaching to another process's memory, pidfd
Findings check_network();        ///< free ports on loopback, interfaces
Findings check_devices();        ///< GPUs
Findings check_versions();       ///< trireme, compiler, kernel, other launchers

/// One line per backend and network, asked of `trireme-torch`, which also says whether libtorch can be
/// loaded.
Findings check_backends();

}  // namespace trireme::cli
