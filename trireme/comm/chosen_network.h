#pragma once
// Choice of comm.network = "auto" for a world.

#include <optional>
#include <string>

#include "trireme/comm/context.h"

namespace trireme::comm {

struct ChosenNetwork {
  std::string name, reason;  ///< "tcp" or "ucx"
};

/// None where ContextOptions::network names one, and in a world of one rank. From the store of the world. For
/// rank 0, or after an operation that rank 0 took part in.
std::optional<ChosenNetwork> chosen_network(Context& context);

}  // namespace trireme::comm
