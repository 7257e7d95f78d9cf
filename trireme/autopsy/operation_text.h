#pragma once
// The parts of an operation as status pages show it: "all_reduce #12 of group world, 64 f32, running; waits
// for ranks 1,3". Functions without state; thread-safe.

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::autopsy {

/// "12", counted by each group for itself; 0 where there is none.
std::uint64_t operation_number(const std::string& operation);
/// "world"; empty where there is none.
std::string operation_group(const std::string& operation);
/// Whether the operation has been issued, and has not ended well.
bool is_open(const std::string& operation);
/// 1 and 3.
std::vector<int> ranks_waited_for(const std::string& operation);
/// Without "; waits for ranks 1,3".
std::string without_waits(const std::string& operation);

}  // namespace trireme::autopsy
