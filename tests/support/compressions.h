#pragma once
// Names of the table of gradient compressions (trireme/parallel/data/comm_hook.cpp), as values of suites. A
// compression that is added is a case of each suite.

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/codecs.h"
#include "trireme/parallel/data/comm_hook.h"

namespace trireme::test {

template <class Wanted>
std::vector<std::string> compressions_where(const Wanted& is_wanted) {
  std::vector<std::string> names = parallel::comm_hook_names();
  std::erase_if(names, [&](const std::string& name) { return !is_wanted(name); });
  return names;
}

/// More than rounding to a number format.
inline std::vector<std::string> lossy_compressions() {
  return compressions_where(
      [](const std::string& name) { return parallel::gradient_rounding(name).is_lossy; });
}

/// Without "one-bit", which compresses momentum.
inline std::vector<std::string> lossy_gradient_compressions() {
  std::vector<std::string> names = lossy_compressions();
  std::erase_if(names, parallel::compresses_momentum);
  return names;
}

/// With error feedback of gradients; "dgc" has that of velocities.
inline std::vector<std::string> compressions_that_leave_out() {
  std::vector<std::string> names = lossy_gradient_compressions();
  const std::vector<std::string> codecs = all_codecs(), leaving_out = codecs_that_leave_out();
  const auto has = [](const std::vector<std::string>& list, const std::string& name) {
    return std::ranges::find(list, name) != list.end();
  };
  std::erase_if(names, [&](const std::string& name) {
    return parallel::has_own_momentum(name) || (has(codecs, name) && !has(leaving_out, name));
  });
  return names;
}

}  // namespace trireme::test
