#pragma once
// Placement of a training run's state outside the memory of the device. A value.

#include <string>
#include <vector>

namespace trireme::optim {

/// Where tensors live: on the device, in the memory of the host next to it, or in files of the rank's host.
enum class OffloadPlace { kNone, kHost, kFiles };

struct OffloadOptions {
  std::string optimizer =
      "none";  ///< optimizer state, but counts and moving averages: a name of offload_place_names()
  std::string parameters = "none";  ///< zero = 3: each rank's shards of them: a name of offload_place_names()
  std::string activations = "none";  ///< tensors that layers save for their backward: a name of
                                     ///< offload_place_names()
  std::string folder = "";           ///< of the files, on each rank's host; empty: the run's
  double part_mib = 16;              ///< that is brought at once; a single tensor may need more
};

/// Throws InvalidArgument: an unknown name.
OffloadPlace offload_place_of(const std::string& name);
std::vector<std::string> offload_place_names();

}  // namespace trireme::optim
