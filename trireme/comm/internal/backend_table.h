#pragma once
// The interface of backends: one row per backend in backend_table.cpp, each made by one function. A backend
// is a c10d::Backend under the operation names of torch 2.11 to 2.13 (_allgather_base, _reduce_scatter_base,
// alltoall_base, ...). A backend that can allocate memory declares it with
// supportsTensorAlloc/allocateTensor. In shm and threads, ranks that issue different operations are detected
// before data moves. In gloo such operations never match. The Watcher detects a mismatch once an operation
// stalls. A backend rejects unsupported arguments, a dtype for example, with InvalidArgument in the issuing
// call, before any communication: the group continues.

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/comm/internal/all_reduce_book.h"
#include "trireme/wire/secret.h"

namespace trireme::comm {

/// Inputs of a backend for connecting the ranks of one group.
struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store;  ///< already prefixed with the group's name: keys cannot collide
  int rank = 0;                           ///< in the group
  int size = 1;
  std::string group_name;
  std::vector<int> world_ranks;       ///< for messages: members in group order
  std::vector<std::string> host_ids;  ///< of the members, in group order
  std::string interface_addr;         ///< address that this rank is reached at by others
  int ranks_on_cores = 1;             ///< of the world, that may run on this rank's cores, itself included
  wire::Secret secret = {};           ///< of the job
  std::string all_reduce = "auto";    ///< between hosts: a name of all_reduce_names()
  std::string network = "tcp";        ///< of these
  /// Of this rank: earlier and present choices of "auto".
  std::shared_ptr<AllReduceBook> all_reduce_book = std::make_shared<AllReduceBook>();
  double timeout_s = 60;            ///< of connecting
  double operation_timeout_s = 60;  ///< of an operation that was not abandoned before
};

struct BackendRow {
  std::string name;
  std::string summary;
  /// Empty when it can be used here, else the reason.
  std::function<std::string()> unavailable_because;
  /// Collective over the group's ranks. Throws CommError, InvalidArgument.
  std::function<c10::intrusive_ptr<c10d::Backend>(const BackendRequest&)> make;
  c10::DeviceType carries = c10::kCPU;  ///< device of the tensors that it moves
  Transport transport = Transport::kBuffered;
};

const std::vector<BackendRow>& backend_table();

/// Throws InvalidArgument with the nearest name, or with the reason why the backend is not available.
const BackendRow& find_backend(const std::string& name);

// One maker per backend; each lives in a file of its name.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendRequest& request);
c10::intrusive_ptr<c10d::Backend> make_shm_backend(const BackendRequest& request);
c10::intrusive_ptr<c10d::Backend> make_threads_backend(const BackendRequest& request);
c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(const BackendRequest& request);
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request);
std::string nccl_unavailable_because();

}  // namespace trireme::comm
