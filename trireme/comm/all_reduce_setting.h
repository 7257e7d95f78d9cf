#pragma once
// Names of the ways of an all-reduce between hosts: ContextOptions::all_reduce, comm.all_reduce. Pure.

#include <string>
#include <vector>

namespace trireme::comm {

inline constexpr const char* kAllReduceAuto = "auto";  ///< what is measured as the fastest, by size
inline constexpr const char* kAllReduceByGloo = "gloo";

/// These two, and the algorithms of trireme/topology/.
std::vector<std::string> all_reduce_names();
/// Throws InvalidArgument that suggests the nearest.
void check_all_reduce(const std::string& name);

}  // namespace trireme::comm
