#include "trireme/comm/internal/backend_table.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

std::string always() { return {}; }

std::string shm_unavailable_because() {
  const int descriptor = ::memfd_create("trireme-probe", MFD_CLOEXEC);
  if (descriptor < 0) return text("the kernel gives no shared memory (memfd_create): ", std::strerror(errno));
  ::close(descriptor);
  return {};
}

}  // namespace

const std::vector<BackendRow>& backend_table() {
  static const std::vector<BackendRow> kTable = {
      {.name = "shm",
       .summary = "shared memory between the processes of one host",
       .unavailable_because = shm_unavailable_because,
       .make = make_shm_backend},
      {.name = "threads",
       .summary = "ranks as threads of one process",
       .unavailable_because = always,
       .make = make_threads_backend},
      {.name = "hierarchical",
       .summary = "shm inside each host, lists of transfers and gloo between hosts",
       .unavailable_because = shm_unavailable_because,
       .make = make_hierarchical_backend},
      {.name = "gloo",
       .summary = "TCP between hosts, any CPU",
       .unavailable_because = always,
       .make = make_gloo_backend},
      {.name = "nccl",
       .summary = "GPUs, by the optional CUDA object",
       .unavailable_because = nccl_unavailable_because,
       .make = make_nccl_backend,
       .carries = c10::kCUDA,
       .transport = Transport::kRendezvous},
  };
  return kTable;
}

const BackendRow& find_backend(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& row : backend_table()) {
    if (row.name == name) {
      const std::string reason = row.unavailable_because();
      require(reason.empty(), "backend '", name, "' cannot be used here: ", reason);
      return row;
    }
    known.push_back(row.name);
  }
  throw InvalidArgument(text("there is no backend '", name, "'", suggest(name, known)));
}

std::vector<BackendInfo> backend_infos() {
  std::vector<BackendInfo> infos;
  for (const auto& row : backend_table()) {
    infos.push_back({row.name, row.summary, row.unavailable_because()});
  }
  return infos;
}

}  // namespace trireme::comm
