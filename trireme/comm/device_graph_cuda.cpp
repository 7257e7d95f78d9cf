// CUDA graphs: part of the optional CUDA object (internal/cuda_object.h).
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include "trireme/comm/internal/cuda_object.h"

namespace {

/// libtorch registers the default generator: the random numbers of a replay follow its seed at that time.
class CudaGraph final : public trireme::comm::DeviceGraph {
 public:
  explicit CudaGraph(int device) : device_(static_cast<c10::DeviceIndex>(device)) {}
  void begin() override {
    const c10::cuda::CUDAGuard guard(device_);
    // Other threads, such as data loaders and communication, may use the device meanwhile.
    graph_.capture_begin(at::cuda::graph_pool_handle(), cudaStreamCaptureModeThreadLocal);
  }
  void end() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }

 private:
  const c10::DeviceIndex device_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

extern "C" {

trireme::comm::DeviceGraph* trireme_cuda_make_graph(int device) { return new CudaGraph(device); }

}  // extern "C"
