#pragma once
// Exchange of shared memory between the ranks of a group on one host: rank 0 makes the group's control block
// and publishes its address in the store; the others attach it and confirm. Collective.

#include <memory>

#include "trireme/comm/internal/backend_table.h"
#include "trireme/wire/shared_memory.h"

namespace trireme::comm {

/// Where the group's memory lives.
enum class MemoryScope { kHost, kProcess };

/// The control block of the group, which all ranks have entered. Throws CommError that names the rank that is
/// missing by the deadline, runs on another host, or cannot attach the memory, and why.
std::shared_ptr<wire::SharedMemory> meet(const BackendRequest& request, MemoryScope scope);

}  // namespace trireme::comm
