#include "trireme/comm/shm/internal/meeting.h"

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/wire/control_block.h"
#include "trireme/wire/local_group.h"

namespace trireme::comm {
namespace {

using wire::SharedMemory;

constexpr const char* kMemoryKey = "shm/memory";
constexpr const char* kFailed = "failed: ";

std::string entered_key(int rank) { return text("shm/entered/", rank); }

int world_rank(const BackendRequest& request, int rank) {
  return request.world_ranks.empty() ? rank : request.world_ranks[static_cast<std::size_t>(rank)];
}

void check_one_host(const BackendRequest& request) {
  for (std::size_t r = 1; r < request.host_ids.size(); ++r)
    if (request.host_ids[r] != request.host_ids[0])
      throw CommError(text("group ", request.group_name, ": rank ", world_rank(request, static_cast<int>(r)),
                           " runs on host ", request.host_ids[r], ", rank ", world_rank(request, 0),
                           " on host ", request.host_ids[0],
                           ": shared memory connects ranks of one host only; use gloo or hierarchical"));
}

void publish(const BackendRequest& request, const std::string& key, const std::string& value) {
  request.store->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

/// The value that `rank` has published under the key. A failure published there is thrown here too.
std::string await(const BackendRequest& request, const std::string& key, int rank, const Deadline& deadline) {
  const std::string who = text("group ", request.group_name, ": rank ", world_rank(request, rank));
  try {
    request.store->wait({key}, whole_milliseconds(deadline.remaining_s()));
  } catch (const std::exception&) {
    throw CommError(
        text(who, " did not join the shared memory group within ", human_duration(request.timeout_s)));
  }
  const std::vector<std::uint8_t> bytes = request.store->get(key);
  std::string value(bytes.begin(), bytes.end());
  if (value.starts_with(kFailed)) throw CommError(text(who, ": ", value.substr(std::string(kFailed).size())));
  return value;
}

/// Calls `make`; publishes a failure under the key for the other ranks.
template <class Make>
auto or_tell(const BackendRequest& request, const std::string& key, const Make& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    publish(request, key, kFailed + std::string(error.what()));
    throw CommError(
        text("group ", request.group_name, ": rank ", world_rank(request, request.rank), ": ", error.what()));
  }
}

}  // namespace

std::shared_ptr<SharedMemory> meet(const BackendRequest& request, MemoryScope scope) {
  check_one_host(request);
  const Deadline deadline = Deadline::after_s(request.timeout_s);
  std::shared_ptr<SharedMemory> memory;
  if (request.rank == 0) {
    memory = or_tell(request, kMemoryKey, [&] {
      const std::size_t bytes = wire::ControlBlock::bytes(wire::BlockLayout::for_size(request.size));
      return scope == MemoryScope::kHost ? SharedMemory::create(bytes)
                                         : SharedMemory::create_in_process(bytes);
    });
    publish(request, kMemoryKey, memory->address());
  } else {
    const std::string address = await(request, kMemoryKey, 0, deadline);
    memory = or_tell(request, entered_key(request.rank), [&] {
      return scope == MemoryScope::kHost ? SharedMemory::attach(address)
                                         : SharedMemory::attach_in_process(address);
    });
  }
  wire::LocalGroup::enter(*memory, request.rank, request.size);
  publish(request, entered_key(request.rank), "entered");
  for (int r = 0; r < request.size; ++r) await(request, entered_key(r), r, deadline);
  return memory;
}

}  // namespace trireme::comm
