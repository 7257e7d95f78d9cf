#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/optional_object.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/cuda_object.h"

namespace trireme::comm {
namespace {

constexpr const char* kFileName = "libtrireme_cuda.so";

CudaObject missing(const std::string& because) {
  CudaObject object;
  object.missing_because = because;
  return object;
}

CudaObject load() {
  if (!std::filesystem::exists("/dev/nvidia0"))
    return missing("no NVIDIA GPU here (there is no /dev/nvidia0)");
  const std::string path = find_optional_object(kFileName, "TRIREME_CUDA_OBJECT");
  if (path.empty()) {
    return missing(
        text(kFileName, " is not next to the program: build where the CUDA toolkit and nccl.h are"));
  }
  return load_cuda_object(path);
}

}  // namespace

CudaObject load_cuda_object(const std::string& path) {
  const OptionalObject loaded =
      load_optional_object(path, /*global=*/true, "'make setup-cuda' fetches the CUDA libraries");
  if (!loaded.missing_because.empty()) return missing(loaded.missing_because);
  CudaObject object;
  const bool complete = loaded.find("trireme_cuda_make_nccl", object.make_nccl) &&
                        loaded.find("trireme_cuda_make_graph", object.make_graph) &&
                        loaded.find("trireme_cuda_pci_bus_id", object.pci_bus_id);
  return complete ? object : missing(text(path, " is from another version: build it again"));
}

const CudaObject& cuda_object() {
  static const CudaObject object = load();
  return object;
}

std::string nccl_unavailable_because() { return cuda_object().missing_because; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request) {
  try {
    return c10::intrusive_ptr<c10d::Backend>::reclaim(cuda_object().make_nccl(
        request.store.get(), request.rank, request.size, request.operation_timeout_s));
  } catch (const c10::Error& error) {
    throw CommError(text("rank ", request.world_ranks[static_cast<std::size_t>(request.rank)],
                         " could not connect group '", request.group_name,
                         "' with nccl: ", error.what_without_backtrace()));
  }
}

}  // namespace trireme::comm
