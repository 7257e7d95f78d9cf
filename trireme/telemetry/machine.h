#pragma once
// The machine that this process runs on, in words for reports. Reads the kernel's values now; thread-safe.

#include <string>
#include <utility>
#include <vector>

namespace trireme::telemetry {

/// A table for people: name and value.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Host, processor, cores, memory and kernel; values that the kernel does not have are left out.
Facts facts_of_this_machine();

}  // namespace trireme::telemetry
