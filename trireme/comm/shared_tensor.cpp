// One shared memory for all ranks of a host: the first rank creates it, the others map it.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <string>

#include "trireme/base/error.h"
#include "trireme/base/memory_ledger.h"
#include "trireme/comm/group.h"
#include "trireme/comm/internal/group_state.h"
#include "trireme/comm/shm/internal/shm_backend.h"
#include "trireme/wire/shared_memory.h"

namespace trireme::comm {
namespace {

using wire::SharedMemory;

constexpr const char* kSharingFailed = "failed: ";

/// Returns the result of `make`. On failure it returns null and writes the reason into `told`.
template <class Make>
std::shared_ptr<SharedMemory> or_reason(std::string& told, const Make& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    told = kSharingFailed + std::string(error.what());
    return nullptr;
  }
}

/// Exchanges the outcomes of all ranks; throws if any rank failed.
std::vector<std::string> tell_all(Group& group, const std::string& told) {
  std::vector<std::string> all = group.all_gather_text(told);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].starts_with(kSharingFailed)) continue;
    throw CommError(text("group '", group.name(), "', rank ", group.world_ranks()[rank],
                         ": no memory in common: ", all[rank].substr(std::string(kSharingFailed).size())));
  }
  return all;
}

/// Null: the group has another backend.
const ShmBackend* shm_of(const Group::State& state) {
  return dynamic_cast<const ShmBackend*>(state.parts.backend.get());
}

}  // namespace

bool Group::has_shared_memory(c10::Device device) const {
  return device.is_cpu() && shm_of(*state_) != nullptr;
}

at::Tensor Group::allocate_shared(std::int64_t numel, const at::TensorOptions& options) {
  if (size() == 1) return at::zeros({numel}, options);
  if (!has_shared_memory(options.device())) return {};
  const bool in_process = !shm_of(*state_)->has_processes();
  const std::size_t bytes = static_cast<std::size_t>(numel) * options.dtype().itemsize();
  std::string told;
  std::shared_ptr<SharedMemory> memory;
  if (rank() == 0) {
    memory = or_reason(told, [&] {
      return in_process ? SharedMemory::create_in_process(bytes) : SharedMemory::create(bytes);
    });
    if (memory) told = memory->address();
  }
  const std::string address = tell_all(*this, told).front();
  told.clear();
  if (rank() != 0) {
    memory = or_reason(told, [&] {
      return in_process ? SharedMemory::attach_in_process(address) : SharedMemory::attach(address);
    });
  }
  tell_all(*this, told);  // the first rank keeps it alive until all have mapped it
  // Ranks that are threads count it once, processes count their share.
  if (!in_process || rank() == 0) {
    MemoryLedger::of_process().add(memory->data(),
                                   in_process ? bytes : bytes / static_cast<std::size_t>(size()),
                                   MemoryKind::kCommunication);
  }
  return at::from_blob(
      memory->data(), {numel}, [memory](void* data) { MemoryLedger::of_process().remove(data); }, options);
}

}  // namespace trireme::comm
