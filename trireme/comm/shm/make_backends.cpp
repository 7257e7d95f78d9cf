// Factories of "shm" and "threads": one engine, with memory of the host or of this process.

#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/shm/internal/meeting.h"
#include "trireme/comm/shm/internal/shm_backend.h"

namespace trireme::comm {
namespace {

c10::intrusive_ptr<c10d::Backend> make(const BackendRequest& request, MemoryScope scope, const char* name) {
  const std::shared_ptr<wire::SharedMemory> memory = meet(request, scope);
  auto group = std::make_shared<wire::LocalGroup>(
      memory, wire::Membership{.rank = request.rank,
                               .size = request.size,
                               .group_name = request.group_name,
                               .rank_names = request.world_ranks,
                               .ranks_on_cores = request.ranks_on_cores,
                               .threads_of_one_process = scope == MemoryScope::kProcess});
  return c10::make_intrusive<ShmBackend>(std::move(group), name, request.operation_timeout_s);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_shm_backend(const BackendRequest& request) {
  return make(request, MemoryScope::kHost, "shm");
}

c10::intrusive_ptr<c10d::Backend> make_threads_backend(const BackendRequest& request) {
  return make(request, MemoryScope::kProcess, "threads");
}

}  // namespace trireme::comm
