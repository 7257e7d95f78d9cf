#pragma once
// The machine that this process runs on, in words for reports. Reads what the kernel says now; thread-safe.

#include <string>
#include <utility>
#include <vector>

namespace trireme::telemetry {

/// A table for people: what, and its value.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Host, processor, cores, memory and kernel; what the kernel does not tell is left out.
Facts facts_of_this_machine();

}  // namespace trireme::telemetry
