#pragma once
// Devices by the names of the configuration, and the device of a rank. Only this file chooses it: tensors are
// made with options that have it, and other code does not depend on its kind. Thread-safe.

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "trireme/comm/gpu_options.h"

namespace trireme::comm {

/// "auto", "cpu", "cuda", and the name of another maker's device that libtorch has been given (PrivateUse1).
std::vector<std::string> device_names();

/// "auto": a GPU where one can be used, else the CPU. Throws InvalidArgument: an unknown name, with the
/// nearest; or why there is no such device here.
c10::DeviceType device_type_of(const std::string& name);

/// "cpu", "cuda", ...: the name that device_type_of() takes.
std::string name_of(c10::DeviceType type);

/// Whether ranks of one host may have one device together.
enum class DeviceUse { kOwn, kShared };

/// The device of the rank in that place of its host; shared ones go round. Throws InvalidArgument: more ranks
/// than devices, each of which is to have its own.
c10::Device device_of_rank(c10::DeviceType type, int local_rank, DeviceUse use);

/// Of the GPUs that the first so many ranks of this host have, each once, in the order of ranks:
/// "0000:3b:00.0". Empty for devices that are no GPUs of NVIDIA's.
std::vector<std::string> pci_bus_ids_of_ranks(c10::DeviceType type, int num_ranks);

/// Sets the options of CUDA's libraries and NCCL in this process (gpu_options.h), before the first use of a
/// GPU. The libraries keep values that they have read, and enabled options stay enabled. Throws
/// InvalidArgument as gpu_variables() does.
void settle_gpu_libraries(const CudaOptions& cuda, const NcclOptions& nccl);

}  // namespace trireme::comm
