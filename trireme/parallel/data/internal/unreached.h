#pragma once
// Messages on parameters that a backward pass did not reach.

#include <string>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::parallel {

/// "rank 1: 'a', 'b'; rank 2: 'a'", of the first names of each rank; empty where no rank has any. Collective.
std::string names_by_rank(comm::Group& group, const std::vector<std::string>& mine);

extern const char* const kUnreachedAdvice;
extern const char* const kUnreachedLater;  ///< of those that were reached at first

/// Throws InvalidArgument; `advice` is one of the above.
[[noreturn]] void reject_unreached(const std::string& where, const char* advice);

}  // namespace trireme::parallel
