#include "trireme/comm/device.h"

#include <ATen/Context.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/comm/internal/cuda_object.h"

namespace trireme::comm {
namespace {

constexpr auto kOther = c10::DeviceType::PrivateUse1;

int count_of(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

/// Empty if CUDA is available.
std::string cuda_missing_because() {
  // Loading the CUDA object also loads libtorch's CUDA kernels.
  if (const std::string& reason = cuda_object().missing_because; !reason.empty()) return reason;
  if (count_of(c10::kCUDA) > 0) return {};
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return text("the driver shows no device",
              visible ? text(" (CUDA_VISIBLE_DEVICES is '", visible, "')") : "");
}

}  // namespace

std::vector<std::string> device_names() {
  std::vector<std::string> names = {"auto", "cpu", "cuda"};
  if (c10::is_privateuse1_backend_registered()) names.push_back(name_of(kOther));
  return names;
}

std::string name_of(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

c10::DeviceType device_type_of(const std::string& name) {
  if (name == "cpu") return c10::kCPU;
  if (name == "auto") return cuda_missing_because().empty() ? c10::kCUDA : c10::kCPU;
  const std::vector<std::string> names = device_names();
  require(std::find(names.begin(), names.end(), name) != names.end(), "device \"", name, "\" is not known",
          suggest(name, names));
  if (name != "cuda") return kOther;
  const std::string reason = cuda_missing_because();
  require(reason.empty(), "device \"cuda\" cannot be used here: ", reason, "; take \"cpu\", or \"auto\"");
  return c10::kCUDA;
}

void settle_gpu_libraries(const CudaOptions& cuda, const NcclOptions& nccl) {
  set_gpu_variables(cuda, nccl);
  at::Context& libtorch = at::globalContext();
  if (cuda.benchmark) libtorch.setBenchmarkCuDNN(true);
  if (cuda.deterministic) libtorch.setDeterministicCuDNN(true);
  if (cuda.tf32 == "auto") return;
  libtorch.setAllowTF32CuDNN(cuda.tf32 != "none");
  libtorch.setAllowTF32CuBLAS(cuda.tf32 == "all");
}

std::vector<std::string> pci_bus_ids_of_ranks(c10::DeviceType type, int num_ranks) {
  if (type != c10::kCUDA) return {};
  std::vector<std::string> ids;
  for (int device = 0; device < std::min(num_ranks, count_of(type)); ++device) {
    std::array<char, 32> id = {};
    if (cuda_object().pci_bus_id(device, id.data(), static_cast<int>(id.size())) != 0)
      ids.emplace_back(id.data());
  }
  return ids;
}

c10::Device device_of_rank(c10::DeviceType type, int local_rank, DeviceUse use) {
  if (type == c10::kCPU) return c10::kCPU;
  const int count = count_of(type);
  require(count > 0, "this host has no device '", name_of(type), "'");
  require(use == DeviceUse::kShared || local_rank < count, "rank ", local_rank, " of this host has no ",
          name_of(type), " device of its own: there ", count == 1 ? "is 1" : text("are ", count),
          "; start at most ", count,
          " ranks per host, or let ranks share devices with comm.backend = \"shm\"");
  return {type, static_cast<c10::DeviceIndex>(local_rank % count)};
}

}  // namespace trireme::comm
