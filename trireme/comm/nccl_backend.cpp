#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/cuda_object.h"

namespace trireme::comm {
namespace {

constexpr const char* kFileName = "libtrireme_cuda.so";

std::string find_file() {
  if (const char* given = std::getenv("TRIREME_CUDA_OBJECT")) return given;
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const auto& folder : {program, program.parent_path() / "lib"}) {
    if (std::filesystem::exists(folder / kFileName)) return folder / kFileName;
  }
  return {};
}

CudaObject missing(const std::string& because) {
  CudaObject object;
  object.missing_because = because;
  return object;
}

template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

CudaObject load() {
  if (!std::filesystem::exists("/dev/nvidia0"))
    return missing("no NVIDIA GPU here (there is no /dev/nvidia0)");
  const std::string path = find_file();
  if (path.empty()) {
    return missing(
        text(kFileName, " is not beside the program: build where the CUDA toolkit and nccl.h are"));
  }
  return load_cuda_object(path);
}

}  // namespace

CudaObject load_cuda_object(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    const char* reason = ::dlerror();
    return missing(text("cannot load ", path, ": ", reason ? reason : "unknown reason",
                        ". 'make setup-cuda' fetches the CUDA libraries"));
  }
  CudaObject object;
  const bool complete = find_function(library, "trireme_cuda_make_nccl", object.make_nccl);
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
