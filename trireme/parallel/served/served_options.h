#pragma once
// How ranks train over the servers of a parameter server. A value.

#include <cstdint>
#include <string>

namespace trireme::parallel {

struct ServedOptions {
  std::string coordinator = "";   ///< where it serves; empty: the launcher's
  std::int64_t staleness = 0;     ///< steps that ranks may be apart; 0: they go together, -1: no bound
  double delay_compensation = 0;  ///< ps::DelaySpec's lambda, where ranks are apart
};

}  // namespace trireme::parallel
