#pragma once
// Options of the libraries for GPUs: CUDA's, cuDNN, and NCCL. They read most of them from variables of the
// environment at their first use, and keep them. So values that are set here stay in the environment. A value
// at its default leaves the variable of the environment unchanged. No torch, no GPU; thread-safe but for
// set_gpu_variables().

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::comm {

/// The table [cuda] of a configuration.
struct CudaOptions {
  std::string visible_devices = "";  ///< "0,2": which of the host's GPUs there are, in this order
  std::string tf32 = "auto";         ///< where f32 may be rounded to TF32 (10 bits): a name of tf32_names()
  bool benchmark = false;            ///< cuDNN times its kernels for each new shape, and takes the fastest
  bool deterministic = false;        ///< the same bits each time, by slower kernels where there are two
  bool expandable_segments = false;  ///< the allocator maps memory as it grows: less is lost to gaps
};

/// The table [nccl] of a configuration.
struct NcclOptions {
  std::string interfaces = "";      ///< "eth,ib": begin of the names of interfaces; "=eth0", "^docker"
  std::string adapters = "";        ///< "mlx5_0:1,mlx5_1": InfiniBand or RoCE, in the same forms
  bool infiniband = true;           ///< false: TCP, though there are adapters
  std::int64_t ib_timeout = 0;      ///< of an answer: 4.096 us * 2^N; 0: NCCL's default
  std::string gpu_direct = "auto";  ///< GPUDirect RDMA up to which distance: a name of gpu_direct_names()
  std::string debug = "off";        ///< level of NCCL's output on standard output: a name of
                                    ///< nccl_debug_names()
};

/// auto (as libtorch has it: convolutions), none, convolutions, all.
std::vector<std::string> tf32_names();
/// auto; loc (none), pix (one PCIe switch between adapter and GPU), pxb (several), phb (one NUMA node), sys.
std::vector<std::string> gpu_direct_names();
std::vector<std::string> nccl_debug_names();  ///< off, version, warn, info, trace

/// Throws InvalidArgument for a value that no library takes, and for two that exclude each other.
void check_gpu_options(const CudaOptions& cuda, const NcclOptions& nccl);

/// A variable of the environment.
using Variable = std::pair<std::string, std::string>;
using FindVariable = std::function<std::optional<std::string>(const std::string& name)>;

/// The variables to set for these options, which are valid, in this `environment`: the allocator's settings
/// are added to its present ones.
std::vector<Variable> gpu_variables(const CudaOptions& cuda, const NcclOptions& nccl,
                                    const FindVariable& environment);

/// Sets them in this process. Throws as check_gpu_options(). Before a GPU is used for the first time, and
/// while no other thread reads or changes the environment.
void set_gpu_variables(const CudaOptions& cuda, const NcclOptions& nccl);

/// Devices and interfaces of a host that the variables may name.
struct GpuSurroundings {
  int num_gpus = 0;
  std::vector<std::string> interfaces, adapters;
};
GpuSurroundings gpu_surroundings();

/// A variable that is set, and its fault here; empty where it has none.
struct GpuVariable {
  Variable variable;
  std::string problem;
};
/// Those of the variables above that are set, in a fixed order.
std::vector<GpuVariable> look_at_gpu_variables(const FindVariable& environment, const GpuSurroundings& here);

}  // namespace trireme::comm
