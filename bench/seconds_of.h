#pragma once
// How long all ranks together take for a number of steps: from one barrier to the next.

#include <functional>

#include "trireme/base/clock.h"
#include "trireme/comm/context.h"

namespace trireme::bench {

inline double seconds_of(comm::Context& context, int steps, const std::function<void()>& step) {
  context.world().barrier();
  const double start = now_s();
  for (int i = 0; i < steps; ++i) step();
  context.world().barrier();
  return now_s() - start;
}

}  // namespace trireme::bench
